// AVX2 without VNNI: integer dots by maddubs, on the lanes of ymm.h. Included by the isa.cpp files
// inside an unnamed namespace.
#pragma once

#include "kernels/simd/ymm.h"

// A dot product takes several instructions, so prompts use matmul/unpacked.inl.
#define PYFLOW_UNPACKED

inline __m256i quads(const int8_t* a) {
  int32_t quad;
  __builtin_memcpy(&quad, a, 4);
  return _mm256_set1_epi32(quad);
}
// |w| <= 127 keeps maddubs' pair sums within int16: 2 * 127 * 127 = 32258. Signed weights: move the
// sign onto the activation; |w| <= 128 gives 2 * 128 * 127 = 32512 at most.
inline __m256i pairs_s8(__m256i w, __m256i q) {
  return _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(q, w));
}
inline __m256i add_pairs(__m256i acc, __m256i pairs) {
  return _mm256_add_epi32(acc, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}

// Pair sums stay in int16 for as many groups of four as 2 * Max * 127 allows, so that one madd
// serves them.
constexpr int pair_sums_in_int16(int max) {
  return 32767 / (2 * max * 127) >= 4 ? 4 : 32767 / (2 * max * 127) >= 2 ? 2 : 1;
}
// Has a sum computed here and now. Compilers make a tree of a sum of several, whose leaves do not
// fit into registers: with many rows 0.7 of the speed for Q4_K.
inline void settle(__m256i& x) { __asm__("" : "+x"(x)); }

// Eight lanes, half of a vector. Sixteen registers hold what belongs to four rows only if each row
// has one for a sum instead of two: Q4_K 1.2 and Q5_K 1.4 times as fast with many rows, Q4_1 0.95.
// With VNNI, whose dots take fewer operations, broadcasting activations twice costs more than that.
struct Avx2Part {
  static constexpr int kAccumulators = 12;

  using F = __m256;
  using I = __m256i;
  using B = __m256i;

  // Part P of a vector.
  template <int P, class V>
  static inline auto of(const V& whole) {
    return P == 0 ? whole.lo : whole.hi;
  }
  static inline F zero() { return _mm256_setzero_ps(); }
  static inline F set1(float x) { return _mm256_set1_ps(x); }
  static inline void store(float* p, F a) { _mm256_storeu_ps(p, a); }
  static inline F load(const float* p) { return _mm256_loadu_ps(p); }
  static inline F add(F a, F b) { return _mm256_add_ps(a, b); }
  static inline F mul(F a, F b) { return _mm256_mul_ps(a, b); }
  static inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
  static inline I izero() { return _mm256_setzero_si256(); }
  static inline I iset1(int32_t x) { return _mm256_set1_epi32(x); }
  static inline I iadd(I a, I b) { return _mm256_add_epi32(a, b); }
  static inline F to_f(I a) { return _mm256_cvtepi32_ps(a); }
  static inline I s8_start(int32_t, int32_t from) { return iset1(from); }
  template <int Max>
  static inline I dot16_u(I acc, const B (&w)[4], const int8_t* a) {
    constexpr int kTogether = pair_sums_in_int16(Max);
#pragma GCC unroll 4
    for (int g = 0; g < 4; g += kTogether) {
      I pairs = _mm256_maddubs_epi16(w[g], quads(a + 4 * g));
#pragma GCC unroll 4
      for (int i = g + 1; i < g + kTogether; ++i) {
        pairs = _mm256_add_epi16(pairs, _mm256_maddubs_epi16(w[i], quads(a + 4 * i)));
        settle(pairs);
      }
      acc = add_pairs(acc, pairs);
      settle(acc);
    }
    return acc;
  }
  template <int>
  static inline I dot16_s(I acc, const B (&w)[4], const int8_t* a) {
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) {
      acc = add_pairs(acc, pairs_s8(w[g], quads(a + 4 * g)));
      settle(acc);
    }
    return acc;
  }

  // dot[p][r]: lanes 8 * p .. of Quads quads of weights, none above Max, against activations `at`
  // and on of row r.
  template <int Max, int Quads, int Rows, class Block>
  static inline void dots(const uint8_t (*w)[64], const Block* a, int at, I (&dot)[2][Rows]) {
    constexpr int kFit = 32767 / (2 * Max * 127);  // quads whose pair sums stay in int16
    constexpr int kTogether = kFit >= Quads ? Quads : kFit >= 4 ? 4 : kFit >= 2 ? 2 : 1;
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
    for (int g = 0; g < Quads; g += kTogether) {
      __m256i pairs[2][Rows];
#pragma GCC unroll 8
      for (int i = 0; i < kTogether; ++i) {
        const __m256i lo = Ymm::loadi(w[g + i]), hi = Ymm::loadi(w[g + i] + 32);
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) {
          const __m256i q = quads(a[r].q + at + 4 * (g + i));
          const __m256i x = _mm256_maddubs_epi16(lo, q), y = _mm256_maddubs_epi16(hi, q);
          pairs[0][r] = i == 0 ? x : _mm256_add_epi16(pairs[0][r], x);
          pairs[1][r] = i == 0 ? y : _mm256_add_epi16(pairs[1][r], y);
          settle(pairs[0][r]);
          settle(pairs[1][r]);
        }
      }
#pragma GCC unroll 2
      for (int p = 0; p < 2; ++p)
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) {
          const __m256i sum = _mm256_madd_epi16(pairs[p][r], ones);
          dot[p][r] = g == 0 ? sum : _mm256_add_epi32(dot[p][r], sum);
        }
    }
  }
};

struct Simd : Ymm {
  static constexpr int kParts = 2;
  static constexpr bool kFreeStart = false;
  using Part = Avx2Part;
  static inline I dot_u7(I acc, B w, const int8_t* a) {
    const __m256i q = quads(a);
    return {add_pairs(acc.lo, _mm256_maddubs_epi16(w.lo, q)),
            add_pairs(acc.hi, _mm256_maddubs_epi16(w.hi, q))};
  }
  static inline I s8_start(int32_t, int32_t from) { return iset1(from); }
  static inline B s8_prepare(B w) { return w; }
  static inline I dot_s8(I acc, B w, const int8_t* a) {
    const __m256i q = quads(a);
    return {add_pairs(acc.lo, pairs_s8(w.lo, q)), add_pairs(acc.hi, pairs_s8(w.hi, q))};
  }
  template <int Max>
  static inline I dot16_u(I acc, const B (&w)[4], const int8_t* a) {
    constexpr int kTogether = pair_sums_in_int16(Max);
#pragma GCC unroll 4
    for (int g = 0; g < 4; g += kTogether) {
      I pairs;
#pragma GCC unroll 4
      for (int i = g; i < g + kTogether; ++i) {
        const __m256i q = quads(a + 4 * i);
        const __m256i lo = _mm256_maddubs_epi16(w[i].lo, q), hi = _mm256_maddubs_epi16(w[i].hi, q);
        pairs.lo = i == g ? lo : _mm256_add_epi16(pairs.lo, lo);
        pairs.hi = i == g ? hi : _mm256_add_epi16(pairs.hi, hi);
        settle(pairs.lo);
        settle(pairs.hi);
      }
      acc = {add_pairs(acc.lo, pairs.lo), add_pairs(acc.hi, pairs.hi)};
      settle(acc.lo);
      settle(acc.hi);
    }
    return acc;
  }
  // Where no weight is -128, which has no opposite, its sign moves to the weight, and what is left
  // of an activation serves both halves.
  template <int Max>
  static inline I dot16_s(I acc, const B (&w)[4], const int8_t* a) {
#pragma GCC unroll 4
    for (int g = 0; g < 4; ++g) {
      if constexpr (Max > 127) {
        acc = dot_s8(acc, w[g], a + 4 * g);
      } else {
        const __m256i q = quads(a + 4 * g), size = _mm256_abs_epi8(q);
        acc.lo = add_pairs(acc.lo, _mm256_maddubs_epi16(size, _mm256_sign_epi8(w[g].lo, q)));
        acc.hi = add_pairs(acc.hi, _mm256_maddubs_epi16(size, _mm256_sign_epi8(w[g].hi, q)));
      }
      settle(acc.lo);
      settle(acc.hi);
    }
    return acc;
  }
};
