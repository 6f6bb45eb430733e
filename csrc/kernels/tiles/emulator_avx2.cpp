#include "kernels/tiles/emulator_tile.h"

#if defined(__x86_64__)
#include "kernels/simd/intrinsics.h"

// One file for all CPUs: these functions alone may use AVX2.
#define PYFLOW_AVX2 __attribute__((target("avx2,fma"), noinline))
#define PYFLOW_AVX2_INLINE __attribute__((target("avx2,fma"), always_inline)) inline

namespace pyflow::emulator {
namespace {

// 16 bytes with a sign, or without one.
template <bool kSigned>
PYFLOW_AVX2_INLINE __m256i widened(const uint8_t* p) {
  const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(p));
  return kSigned ? _mm256_cvtepi8_epi16(bytes) : _mm256_cvtepu8_epi16(bytes);
}

template <bool kSigned>
PYFLOW_AVX2 void dot_bytes(const Tile& a, const Tile& b, Tile& c, Size size) {
  alignas(32) int16_t left[kBytes];
  __m256i right[kRows][kBytes / 16];
  for (int k = 0; k < size.depth; ++k)
    for (int i = 0; i < kBytes / 16; ++i) right[k][i] = widened<kSigned>(&b.bytes[k][16 * i]);
  for (int m = 0; m < size.rows; ++m) {
    for (int i = 0; i < kBytes; i += 16)
      _mm256_store_si256(reinterpret_cast<__m256i*>(left + i), widened<true>(&a.bytes[m][i]));
    __m256i pairs[kBytes / 16] = {};
    for (int k = 0; k < size.depth; ++k) {
      long long quad;
      __builtin_memcpy(&quad, left + 4 * k, sizeof quad);
      for (int i = 0; i < kBytes / 16; ++i)
        pairs[i] =
            _mm256_add_epi32(pairs[i], _mm256_madd_epi16(_mm256_set1_epi64x(quad), right[k][i]));
    }
    uint32_t sums[2 * kLanes];
    __builtin_memcpy(sums, pairs, sizeof sums);
    for (int n = 0; n < kLanes; ++n) c.words[m][n] += sums[2 * n] + sums[2 * n + 1];
  }
}

// The even and the odd values of pairs of bf16.
PYFLOW_AVX2_INLINE __m256 even_of(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}
PYFLOW_AVX2_INLINE __m256 odd_of(__m256i pairs) {
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(-0x10000)));
}
PYFLOW_AVX2_INLINE __m256i load(const uint32_t* p) {
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(p));
}

// All bits set in the lanes where one of two vectors has a NaN.
PYFLOW_AVX2_INLINE __m256 nans(__m256 x, __m256 y) { return _mm256_cmp_ps(x, y, _CMP_UNORD_Q); }

PYFLOW_AVX2 bool has_nan(const Tile& a, const Tile& b, const Tile& c, Size size) {
  __m256 found = _mm256_setzero_ps();
  for (int n = 0; n < kLanes; n += 8) {
    for (int m = 0; m < size.rows; ++m) {
      const __m256i pairs = load(&a.words[m][n]);
      const __m256 sums = _mm256_castsi256_ps(load(&c.words[m][n]));
      found = _mm256_or_ps(found, nans(even_of(pairs), odd_of(pairs)));
      found = _mm256_or_ps(found, nans(sums, sums));
    }
    for (int k = 0; k < size.depth; ++k) {
      const __m256i pairs = load(&b.words[k][n]);
      found = _mm256_or_ps(found, nans(even_of(pairs), odd_of(pairs)));
    }
  }
  return _mm256_movemask_ps(found) != 0;
}

// With subnormals as zeros.
PYFLOW_AVX2 void chains(const Tile& a, const Tile& b, Tile& c, Size size) {
  for (int n = 0; n < kLanes; n += 8) {
    __m256 evens[kRows], odds[kRows];
    for (int k = 0; k < size.depth; ++k) {
      const __m256i pairs = load(&b.words[k][n]);
      evens[k] = even_of(pairs), odds[k] = odd_of(pairs);
    }
    for (int m = 0; m < size.rows; ++m) {
      __m256 even = _mm256_setzero_ps(), odd = _mm256_setzero_ps();
      for (int k = 0; k < size.depth; ++k) {
        const __m256i pair = _mm256_set1_epi32(static_cast<int>(a.words[m][k]));
        even = _mm256_fmadd_ps(even_of(pair), evens[k], even);
        odd = _mm256_fmadd_ps(odd_of(pair), odds[k], odd);
      }
      auto* sums = reinterpret_cast<float*>(&c.words[m][n]);
      _mm256_store_ps(sums, _mm256_add_ps(_mm256_load_ps(sums), _mm256_add_ps(even, odd)));
    }
  }
}

}  // namespace

bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

void dot_s8_by_avx2(const Tile& a, const Tile& b, Tile& c, Size size) {
  dot_bytes<true>(a, b, c, size);
}
void dot_su8_by_avx2(const Tile& a, const Tile& b, Tile& c, Size size) {
  dot_bytes<false>(a, b, c, size);
}

bool dot_bf16_by_avx2(const Tile& a, const Tile& b, Tile& c, Size size) {
  if (has_nan(a, b, c, size)) return false;
  constexpr unsigned kToNearestFlushingAllMasked = 0x9fc0;  // of MXCSR
  const unsigned before = _mm_getcsr();
  _mm_setcsr(kToNearestFlushingAllMasked);
  chains(a, b, c, size);
  _mm_setcsr(before);
  return true;
}

}  // namespace pyflow::emulator

#else

namespace pyflow::emulator {

bool has_avx2() { return false; }
void dot_s8_by_avx2(const Tile&, const Tile&, Tile&, Size) {}
void dot_su8_by_avx2(const Tile&, const Tile&, Tile&, Size) {}
bool dot_bf16_by_avx2(const Tile&, const Tile&, Tile&, Size) { return false; }

}  // namespace pyflow::emulator

#endif
