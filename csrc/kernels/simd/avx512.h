// Sixteen lanes on AVX-512 (F, BW, DQ, VL, VNNI): one register per vector.
// Included by the isa.cpp files inside an unnamed namespace. scalar.h documents the vocabulary.
#pragma once

#include "kernels/simd/vnni.h"

struct Zmm {
  static constexpr int kAccumulators = 24;  // vectors that a kernel may keep in registers
  static constexpr int kParts = 1;
  using Part = Vnni<Zmm>;

  using F = __m512;
  using I = __m512i;
  using B = __m512i;

  static inline F zero() { return _mm512_setzero_ps(); }
  static inline F set1(float x) { return _mm512_set1_ps(x); }
  static inline F load(const float* p) { return _mm512_loadu_ps(p); }
  static inline void store(float* p, F a) { _mm512_storeu_ps(p, a); }
  static inline F load_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }
  static inline void store_f16(uint16_t* p, F a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                        _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
  }
  static inline F set1_f16(const uint16_t* p) {
    return _mm512_cvtph_ps(_mm256_set1_epi16(static_cast<int16_t>(*p)));
  }
  static inline F load_bf16(const uint16_t* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(
        _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))), 16));
  }
  static inline void load_e4m3(const uint8_t* p, F (&w)[4]) {
    const __m512i pairs = _mm512_loadu_si512(p), mask = _mm512_set1_epi16(int16_t(0xbf80));
    const auto halves = [mask](__m512i top, F& low, F& high) {  // codes in the upper bytes
      const __m512i half = _mm512_and_si512(_mm512_srai_epi16(top, 1), mask);
      low = _mm512_cvtph_ps(_mm512_castsi512_si256(half));
      high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(half, 1));
    };
    halves(_mm512_slli_epi16(pairs, 8), w[0], w[2]);
    halves(pairs, w[1], w[3]);
  }
  static inline F pick16(const float* table, I index) {
    return _mm512_permutexvar_ps(index, load(table));
  }
  static inline F load_i8f(const int8_t* p) { return to_f(load_i8(p)); }
  static inline F add(F a, F b) { return _mm512_add_ps(a, b); }
  static inline F sub(F a, F b) { return _mm512_sub_ps(a, b); }
  static inline F mul(F a, F b) { return _mm512_mul_ps(a, b); }
  static inline F div(F a, F b) { return _mm512_div_ps(a, b); }
  static inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
  static inline F fnma(F a, F b, F c) { return _mm512_fnmadd_ps(a, b, c); }
  static inline F max(F a, F b) { return _mm512_max_ps(a, b); }
  static inline F min(F a, F b) { return _mm512_min_ps(a, b); }
  static inline F abs(F a) { return _mm512_abs_ps(a); }
  static inline F where_less(F a, F b, F yes, F no) {
    return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), no, yes);
  }
  static inline F swap_pairs(F a) { return _mm512_permute_ps(a, 0xB1); }
  static inline F permute4(F a, I lanes) { return _mm512_permutevar_ps(a, lanes); }
  static inline F zip_lo(F a, F b) {
    const I index = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    return _mm512_permutex2var_ps(a, index, b);
  }
  static inline F zip_hi(F a, F b) {
    const I index = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
    return _mm512_permutex2var_ps(a, index, b);
  }
  static inline float reduce_add(F a) {
    const __m256 b = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
  }
  static inline float reduce_max(F a) {
    const __m256 b = _mm256_max_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
  }

  static inline I izero() { return _mm512_setzero_si512(); }
  static inline I iset1(int32_t x) { return _mm512_set1_epi32(x); }
  static inline I load_i32(const int32_t* p) { return _mm512_loadu_si512(p); }
  static inline void store_i32(int32_t* p, I a) { _mm512_storeu_si512(p, a); }
  static inline I load_i8(const int8_t* p) {
    return _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static inline I load_u8(const uint8_t* p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static inline void store_i8(int8_t* p, I a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(a));
  }
  static inline I iadd(I a, I b) { return _mm512_add_epi32(a, b); }
  static inline I isub(I a, I b) { return _mm512_sub_epi32(a, b); }
  static inline I imul(I a, I b) { return _mm512_mullo_epi32(a, b); }
  static inline I iand(I a, I b) { return _mm512_and_si512(a, b); }
  static inline I ior(I a, I b) { return _mm512_or_si512(a, b); }
  template <int N>
  static inline I shl(I a) {
    return _mm512_slli_epi32(a, N);
  }
  template <int N>
  static inline I shr(I a) {
    return _mm512_srli_epi32(a, N);
  }
  template <int N>
  static inline I sar(I a) {
    return _mm512_srai_epi32(a, N);
  }
  static inline F to_f(I a) { return _mm512_cvtepi32_ps(a); }
  static inline I to_i(F a) { return _mm512_cvtps_epi32(a); }
  static inline F bits_f(I a) { return _mm512_castsi512_ps(a); }
  static inline I bits_i(F a) { return _mm512_castps_si512(a); }

  static inline B bload(const uint8_t* p) { return _mm512_loadu_si512(p); }
  static inline B bset1(uint8_t x) { return _mm512_set1_epi8(static_cast<char>(x)); }
  static inline B band(B a, B b) { return _mm512_and_si512(a, b); }
  static inline B bor(B a, B b) { return _mm512_or_si512(a, b); }
  static inline B bmerge(B a, B mask, B b) {
    return _mm512_ternarylogic_epi32(a, mask, b, 0xea);  // (a & mask) | b
  }
  template <int N>
  static inline B bshr(B a) {
    return _mm512_srli_epi16(a, N);
  }
  template <int N>
  static inline B bshl(B a) {
    return _mm512_slli_epi16(a, N);
  }
  static inline B bavg(B a, B b) { return _mm512_avg_epu8(a, b); }
  // 2979 / 2^7 = 256 / 11 + 0.0007: for c up to 127 the whole parts of both products are the same.
  template <int T>
  static inline B belevenths(B a) {
    const B product = T == 0 ? _mm512_mulhi_epu16(_mm512_slli_epi16(a, 9), _mm512_set1_epi16(2979))
                             : _mm512_mulhi_epu16(_mm512_and_si512(a, _mm512_set1_epi16(0x7f00)),
                                                  _mm512_set1_epi16(2 * 2979));
    return _mm512_and_si512(product, _mm512_set1_epi8(15));
  }
  static inline B lut16(const int8_t* table, B index) {
    return _mm512_shuffle_epi8(
        _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(table))), index);
  }
  static inline B bxor(B a, B b) { return _mm512_xor_si512(a, b); }
  static inline I dpbusd(I acc, B w, int32_t quad) {
    return _mm512_dpbusd_epi32(acc, w, _mm512_set1_epi32(quad));
  }

  static inline void prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
  }
  static inline void prefetch_far(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
  }
};
using Simd = Vnni<Zmm>;
