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

}  // namespace pyflow::quant
