// The 12 bytes in which a row of Q4_K or Q5_K keeps eight 6-bit scales and eight 6-bit minimums.
//
//   byte j      (j < 4)  scale j     | high 2 bits of scale j + 4     << 6
//   byte 4 + j           minimum j   | high 2 bits of minimum j + 4   << 6
//   byte 8 + j           low 4 bits of scale j + 4 | low 4 bits of minimum j + 4 << 4
//
// In a tile they stay packed, as three lines of dwords, one dword per row:
//   d[16] f16, dmin[16] f16 | bytes 0..3 of 16 rows | bytes 4..7 | bytes 8..11         256 bytes
#pragma once

#include "quant/half.h"
#include "quant/planes.h"

namespace pyflow::quant {

struct KScales {
  static constexpr int kTileBytes = 256;

  static int scale(const uint8_t* b, int j) {
    return j < 4 ? b[j] & 63 : (b[j + 4] & 15) | b[j - 4] >> 6 << 4;
  }
  static int minimum(const uint8_t* b, int j) {
    return j < 4 ? b[j + 4] & 63 : b[j + 4] >> 4 | b[j] >> 6 << 4;
  }
  // The 12 bytes from eight scales and minimums below 64.
  static void set(uint8_t* b, const uint8_t* scales, const uint8_t* minimums) {
    for (int j = 0; j < 4; ++j) {
      b[j] = static_cast<uint8_t>(scales[j] | scales[j + 4] >> 4 << 6);
      b[j + 4] = static_cast<uint8_t>(minimums[j] | minimums[j + 4] >> 4 << 6);
      b[j + 8] = static_cast<uint8_t>((scales[j + 4] & 15) | (minimums[j + 4] & 15) << 4);
    }
  }

  static void put(uint8_t* p, int lane, uint16_t d, uint16_t dmin, const uint8_t* b) {
    store16(p + 2 * lane, d);
    store16(p + 32 + 2 * lane, dmin);
    for (int i = 0; i < 3; ++i) store32(quad(p, 1 + i, lane), load32(b + 4 * i));
  }
  static void get(const uint8_t* p, int lane, uint16_t& d, uint16_t& dmin, uint8_t* b) {
    d = load16(p + 2 * lane);
    dmin = load16(p + 32 + 2 * lane);
    for (int i = 0; i < 3; ++i) store32(b + 4 * i, load32(quad(p, 1 + i, lane)));
  }

  // d * scale and -dmin * minimum: exact in f32, 11 bits times 6.
  template <class S>
  static inline void load(const uint8_t* p, typename S::F* s, typename S::F* m) {
    using F = typename S::F;
    using I = typename S::I;
    const auto* dwords = reinterpret_cast<const int32_t*>(p + 64);
    const I b0 = S::load_i32(dwords), b4 = S::load_i32(dwords + 16), b8 = S::load_i32(dwords + 32);
    const I six = S::iset1(0x3f3f3f3f), four = S::iset1(0x0f0f0f0f), high = S::iset1(0x30303030);
    const I scales[2] = {
        S::iand(b0, six),
        S::ior(S::iand(b8, four), S::iand(S::template shr<2>(b0), high)),
    };
    const I minimums[2] = {
        S::iand(b4, six),
        S::ior(S::iand(S::template shr<4>(b8), four), S::iand(S::template shr<2>(b4), high)),
    };
    const auto* half = reinterpret_cast<const uint16_t*>(p);
    const F d = S::load_f16(half), minus_dmin = S::sub(S::zero(), S::load_f16(half + 16));
    for (int i = 0; i < 2; ++i) {
      scaled_bytes<S>(scales[i], d, s + 4 * i);
      scaled_bytes<S>(minimums[i], minus_dmin, m + 4 * i);
    }
  }
};

}  // namespace pyflow::quant
