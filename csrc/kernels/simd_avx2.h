// AVX2 without VNNI: integer dots by maddubs, on the lanes of simd_ymm.h.
// Included only by isa_avx2.cpp, inside an unnamed namespace.
#pragma once

#include "kernels/simd_ymm.h"

struct Simd : Ymm {
  static inline __m256i quads(const int8_t* a) {
    int32_t quad;
    __builtin_memcpy(&quad, a, 4);
    return _mm256_set1_epi32(quad);
  }
  // |w| <= 127 keeps maddubs' pair sums within int16: 2 * 127 * 127 = 32258.
  static inline I dot_u7(I acc, B w, const int8_t* a) {
    const __m256i q = quads(a), one = _mm256_set1_epi16(1);
    return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(_mm256_maddubs_epi16(w.lo, q), one)),
            _mm256_add_epi32(acc.hi, _mm256_madd_epi16(_mm256_maddubs_epi16(w.hi, q), one))};
  }
  // Signed weights: move the sign onto the activation. |w| <= 128 gives 2 * 128 * 127 = 32512 at
  // most.
  static inline I s8_start(int32_t) { return izero(); }
  static inline B s8_prepare(B w) { return w; }
  static inline I dot_s8(I acc, B w, const int8_t* a) {
    const __m256i q = quads(a), one = _mm256_set1_epi16(1);
    const __m256i lo = _mm256_maddubs_epi16(_mm256_abs_epi8(w.lo), _mm256_sign_epi8(q, w.lo));
    const __m256i hi = _mm256_maddubs_epi16(_mm256_abs_epi8(w.hi), _mm256_sign_epi8(q, w.hi));
    return {_mm256_add_epi32(acc.lo, _mm256_madd_epi16(lo, one)),
            _mm256_add_epi32(acc.hi, _mm256_madd_epi16(hi, one))};
  }
  // Pair sums stay in int16 for as many groups as 2 * Max * 127 allows, so that one madd serves
  // them.
  template <int Max>
  static inline I dot16_u(I acc, const B (&w)[4], const int8_t* a) {
    constexpr int kTogether = 32767 / (2 * Max * 127) >= 4   ? 4
                              : 32767 / (2 * Max * 127) >= 2 ? 2
                                                             : 1;
    const __m256i one = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (int g = 0; g < 4; g += kTogether) {
      __m256i q = quads(a + 4 * g);
      __m256i lo = _mm256_maddubs_epi16(w[g].lo, q), hi = _mm256_maddubs_epi16(w[g].hi, q);
#pragma GCC unroll 4
      for (int i = g + 1; i < g + kTogether; ++i) {
        q = quads(a + 4 * i);
        lo = _mm256_add_epi16(lo, _mm256_maddubs_epi16(w[i].lo, q));
        hi = _mm256_add_epi16(hi, _mm256_maddubs_epi16(w[i].hi, q));
      }
      acc.lo = _mm256_add_epi32(acc.lo, _mm256_madd_epi16(lo, one));
      acc.hi = _mm256_add_epi32(acc.hi, _mm256_madd_epi16(hi, one));
    }
    return acc;
  }
  static inline I dot16_s(I acc, const B (&w)[4], const int8_t* a) {
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) acc = dot_s8(acc, w[g], a + 4 * g);
    return acc;
  }
};
