// AVX2 with AVX-VNNI: integer dots by vpdpbusd (vnni.h), on the lanes of ymm.h.
// Included by the isa.cpp files inside an unnamed namespace.
#pragma once

#include "kernels/simd/vnni.h"
#include "kernels/simd/ymm.h"

struct YmmVnni : Ymm {
  static constexpr int kParts = 1;
  using Part = Vnni<YmmVnni>;

  static inline B bxor(B a, B b) {
    return {_mm256_xor_si256(a.lo, b.lo), _mm256_xor_si256(a.hi, b.hi)};
  }
  static inline I dpbusd(I acc, B w, int32_t quad) {
    const __m256i a = _mm256_set1_epi32(quad);
    return {_mm256_dpbusd_avx_epi32(acc.lo, w.lo, a), _mm256_dpbusd_avx_epi32(acc.hi, w.hi, a)};
  }
};
using Simd = Vnni<YmmVnni>;
