// Integer dots where one instruction adds four products of unsigned weights and signed activations
// to each lane: Lanes::dpbusd. Included by avxvnni.h and avx512.h inside an unnamed namespace.
#pragma once

template <class Lanes>
struct Vnni : Lanes {
  using typename Lanes::B;
  using typename Lanes::I;
  static constexpr bool kFreeStart = true;

  static inline I dot_u7(I acc, B w, const int8_t* a) {
    int32_t quad;
    __builtin_memcpy(&quad, a, 4);
    return Lanes::dpbusd(acc, w, quad);
  }
  // A signed weight is biased by 128, and the bias taken off through the activation's sum, once per
  // block.
  static inline I s8_start(int32_t a_sum, int32_t from) { return Lanes::iset1(from - 128 * a_sum); }
  static inline B s8_prepare(B w) { return Lanes::bxor(w, Lanes::bset1(0x80)); }
  static inline I dot_s8(I acc, B w, const int8_t* a) { return dot_u7(acc, w, a); }
  template <int Max>
  static inline I dot16_u(I acc, const B (&w)[4], const int8_t* a) {
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) acc = dot_u7(acc, w[g], a + 4 * g);
    return acc;
  }
  template <int Max>
  static inline I dot16_s(I acc, const B (&w)[4], const int8_t* a) {
    return dot16_u<255>(acc, w, a);
  }
};
