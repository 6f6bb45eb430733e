// IEEE binary16 as it lies in files.
#pragma once

#include <cstdint>

namespace pyflow::quant {

// Exact for every bit pattern; a NaN keeps its sign and becomes quiet.
inline float from_half(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023;
  if (e == 0) {  // zero or subnormal: m * 2^-24 is exact
    const float f = static_cast<float>(m) * 0x1p-24f;
    return sign ? -f : f;
  }
  const uint32_t quiet = e == 31 && m != 0 ? 0x400000 : 0;
  const uint32_t bits = sign | (e == 31 ? 0x7f800000u : (e + 112) << 23) | (m << 13) | quiet;
  float f;
  __builtin_memcpy(&f, &bits, 4);
  return f;
}

// The nearest, ties to even; infinity from 65520 on. Not for NaN.
inline uint16_t to_half(float f) {
  uint32_t bits;
  __builtin_memcpy(&bits, &f, 4);
  const uint32_t sign = bits >> 16 & 0x8000;
  uint32_t a = bits & 0x7fffffff;
  if (a >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
  if (a < 0x38800000) {  // subnormal: a sum with 0.5 has 2^-24 as its last bit
    float g;
    __builtin_memcpy(&g, &a, 4);
    g += 0.5f;
    __builtin_memcpy(&a, &g, 4);
    return static_cast<uint16_t>(sign | (a - 0x3f000000));
  }
  return static_cast<uint16_t>(sign | (a - 0x38000000 + 0xfff + (a >> 13 & 1)) >> 13);
}

}  // namespace pyflow::quant
