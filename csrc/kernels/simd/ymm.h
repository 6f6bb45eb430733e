// Sixteen lanes on AVX2 + FMA + F16C, two registers per vector: all of the vocabulary
// (scalar.h documents it) but the integer dots, which avx2.h and avxvnni.h add. Included inside an
// unnamed namespace.
#pragma once

struct Ymm {
  static constexpr int kAccumulators = 6;  // vectors that a kernel may keep in registers

  struct F {
    __m256 lo, hi;
  };
  struct I {
    __m256i lo, hi;
  };
  using B = I;

#define PYFLOW_EACH_F(name, op) \
  static inline F name(F a, F b) { return {op(a.lo, b.lo), op(a.hi, b.hi)}; }
#define PYFLOW_EACH_I(name, op) \
  static inline I name(I a, I b) { return {op(a.lo, b.lo), op(a.hi, b.hi)}; }

  static inline __m256i loadi(const void* p) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(p));
  }
  static inline __m128i load128(const void* p) {
    return _mm_loadu_si128(static_cast<const __m128i*>(p));
  }

  static inline F zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
  static inline F set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
  static inline F load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
  static inline void store(float* p, F a) {
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
  }
  static inline F load_f16(const uint16_t* p) {
    return {_mm256_cvtph_ps(load128(p)), _mm256_cvtph_ps(load128(p + 8))};
  }
  static inline void store_f16(uint16_t* p, F a) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p),
                     _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p + 8),
                     _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT));
  }
  static inline F set1_f16(const uint16_t* p) {
    const __m256 x = _mm256_cvtph_ps(_mm_set1_epi16(static_cast<int16_t>(*p)));
    return {x, x};
  }
  static inline F load_bf16(const uint16_t* p) {
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p)), 16)),
            _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(load128(p + 8)), 16))};
  }
  static inline void load_e4m3(const uint8_t* p, F (&w)[4]) {
    const __m256i mask = _mm256_set1_epi16(static_cast<int16_t>(0xbf80));
    const auto widened = [mask](__m256i top) -> F {  // codes in the upper bytes
      const __m256i half = _mm256_and_si256(_mm256_srai_epi16(top, 1), mask);
      return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)),
              _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
    };
    for (int i = 0; i < 4; i += 2) {
      const __m256i pairs = loadi(p + 16 * i);
      w[i] = widened(_mm256_slli_epi16(pairs, 8));
      w[i + 1] = widened(pairs);
    }
  }
  static inline F pick16(const float* table, I index) {
    const F t = load(table);
    const auto picked = [t](__m256i i) {  // bit 3 becomes the sign that a blend looks at
      return _mm256_blendv_ps(_mm256_permutevar8x32_ps(t.lo, i), _mm256_permutevar8x32_ps(t.hi, i),
                              _mm256_castsi256_ps(_mm256_slli_epi32(i, 28)));
    };
    return {picked(index.lo), picked(index.hi)};
  }
  static inline F load_i8f(const int8_t* p) { return to_f(load_i8(p)); }
  PYFLOW_EACH_F(add, _mm256_add_ps)
  PYFLOW_EACH_F(sub, _mm256_sub_ps)
  PYFLOW_EACH_F(mul, _mm256_mul_ps)
  PYFLOW_EACH_F(div, _mm256_div_ps)
  PYFLOW_EACH_F(max, _mm256_max_ps)
  PYFLOW_EACH_F(min, _mm256_min_ps)
  static inline F fma(F a, F b, F c) {
    return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
  }
  static inline F fnma(F a, F b, F c) {
    return {_mm256_fnmadd_ps(a.lo, b.lo, c.lo), _mm256_fnmadd_ps(a.hi, b.hi, c.hi)};
  }
  static inline F abs(F a) {
    const __m256 sign = _mm256_set1_ps(-0.0f);
    return {_mm256_andnot_ps(sign, a.lo), _mm256_andnot_ps(sign, a.hi)};
  }
  static inline F where_less(F a, F b, F yes, F no) {
    return {_mm256_blendv_ps(no.lo, yes.lo, _mm256_cmp_ps(a.lo, b.lo, _CMP_LT_OQ)),
            _mm256_blendv_ps(no.hi, yes.hi, _mm256_cmp_ps(a.hi, b.hi, _CMP_LT_OQ))};
  }
  static inline F swap_pairs(F a) {
    return {_mm256_permute_ps(a.lo, 0xB1), _mm256_permute_ps(a.hi, 0xB1)};
  }
  static inline F permute4(F a, I lanes) {
    return {_mm256_permutevar_ps(a.lo, lanes.lo), _mm256_permutevar_ps(a.hi, lanes.hi)};
  }
  // unpack works within halves of a register, so the halves are put in order afterwards.
  static inline F zip(__m256 a, __m256 b) {
    const __m256 lo = _mm256_unpacklo_ps(a, b), hi = _mm256_unpackhi_ps(a, b);
    return {_mm256_permute2f128_ps(lo, hi, 0x20), _mm256_permute2f128_ps(lo, hi, 0x31)};
  }
  static inline F zip_lo(F a, F b) { return zip(a.lo, b.lo); }
  static inline F zip_hi(F a, F b) { return zip(a.hi, b.hi); }
  static inline float reduce_add(F a) {
    const __m256 b = _mm256_add_ps(a.lo, a.hi);
    const __m128 c = _mm_add_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    const __m128 d = _mm_add_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_add_ss(d, _mm_movehdup_ps(d)));
  }
  static inline float reduce_max(F a) {
    const __m256 b = _mm256_max_ps(a.lo, a.hi);
    const __m128 c = _mm_max_ps(_mm256_castps256_ps128(b), _mm256_extractf128_ps(b, 1));
    const __m128 d = _mm_max_ps(c, _mm_movehl_ps(c, c));
    return _mm_cvtss_f32(_mm_max_ss(d, _mm_movehdup_ps(d)));
  }

  static inline I izero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  static inline I iset1(int32_t x) { return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)}; }
  static inline I load_i32(const int32_t* p) { return {loadi(p), loadi(p + 8)}; }
  static inline void store_i32(int32_t* p, I a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
  }
  static inline I load_i8(const int8_t* p) {
    const __m128i b = load128(p);
    return {_mm256_cvtepi8_epi32(b), _mm256_cvtepi8_epi32(_mm_srli_si128(b, 8))};
  }
  static inline I load_u8(const uint8_t* p) {
    const __m128i b = load128(p);
    return {_mm256_cvtepu8_epi32(b), _mm256_cvtepu8_epi32(_mm_srli_si128(b, 8))};
  }
  static inline void store_i8(int8_t* p, I a) {
    const __m128i lo =
        _mm_packs_epi32(_mm256_castsi256_si128(a.lo), _mm256_extracti128_si256(a.lo, 1));
    const __m128i hi =
        _mm_packs_epi32(_mm256_castsi256_si128(a.hi), _mm256_extracti128_si256(a.hi, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm_packs_epi16(lo, hi));
  }
  PYFLOW_EACH_I(iadd, _mm256_add_epi32)
  PYFLOW_EACH_I(isub, _mm256_sub_epi32)
  PYFLOW_EACH_I(imul, _mm256_mullo_epi32)
  PYFLOW_EACH_I(iand, _mm256_and_si256)
  PYFLOW_EACH_I(ior, _mm256_or_si256)
  template <int N>
  static inline I shl(I a) {
    return {_mm256_slli_epi32(a.lo, N), _mm256_slli_epi32(a.hi, N)};
  }
  template <int N>
  static inline I shr(I a) {
    return {_mm256_srli_epi32(a.lo, N), _mm256_srli_epi32(a.hi, N)};
  }
  template <int N>
  static inline I sar(I a) {
    return {_mm256_srai_epi32(a.lo, N), _mm256_srai_epi32(a.hi, N)};
  }
  static inline F to_f(I a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }
  static inline I to_i(F a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
  static inline F bits_f(I a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
  static inline I bits_i(F a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }

  static inline B bload(const uint8_t* p) { return {loadi(p), loadi(p + 32)}; }
  static inline void bstore(uint8_t* p, B a) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 32), a.hi);
  }
  static inline B bset1(uint8_t x) {
    return {_mm256_set1_epi8(static_cast<char>(x)), _mm256_set1_epi8(static_cast<char>(x))};
  }
  PYFLOW_EACH_I(band, _mm256_and_si256)
  PYFLOW_EACH_I(bor, _mm256_or_si256)
  static inline B bmerge(B a, B mask, B b) { return bor(band(a, mask), b); }
  template <int N>
  static inline B bshr(B a) {
    return {_mm256_srli_epi16(a.lo, N), _mm256_srli_epi16(a.hi, N)};
  }
  template <int N>
  static inline B bshl(B a) {
    return {_mm256_slli_epi16(a.lo, N), _mm256_slli_epi16(a.hi, N)};
  }
  PYFLOW_EACH_I(bavg, _mm256_avg_epu8)
  // 2979 / 2^7 = 256 / 11 + 0.0007: for c up to 127 the whole parts of both products are the same.
  template <int T>
  static inline __m256i elevenths(__m256i a) {
    const __m256i product =
        T == 0 ? _mm256_mulhi_epu16(_mm256_slli_epi16(a, 9), _mm256_set1_epi16(2979))
               : _mm256_mulhi_epu16(_mm256_and_si256(a, _mm256_set1_epi16(0x7f00)),
                                    _mm256_set1_epi16(2 * 2979));
    return _mm256_and_si256(product, _mm256_set1_epi8(15));
  }
  template <int T>
  static inline B belevenths(B a) {
    return {elevenths<T>(a.lo), elevenths<T>(a.hi)};
  }
  static inline B lut16(const int8_t* table, B index) {
    const __m256i t = _mm256_broadcastsi128_si256(load128(table));
    return {_mm256_shuffle_epi8(t, index.lo), _mm256_shuffle_epi8(t, index.hi)};
  }
  static inline void prefetch(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
  }
  static inline void prefetch_far(const void* p) {
    _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T1);
  }
#undef PYFLOW_EACH_F
#undef PYFLOW_EACH_I
};
