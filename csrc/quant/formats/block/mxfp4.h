// MXFP4: 32 weights in 17 bytes, 4.25 bits each: floats of four bits, and a power of two.
//
//   e u8 | qs[16]      value j = point(nibble) * 2^(e - 128), nibbles ordered as in Q4_0
//
//   A nibble is a sign and twice the magnitude: 0, 1, 2, 3, 4, 6, 8 or 12. Scales of e = 0 and 1
//   are subnormal.
//
// Tile unit, 16 rows x 64 k, 576 bytes, 6 % more than the file:  scale[2][16] bf16 | Nibbles 512
//
// "OCP Microscaling Formats (MX) Specification", version 1.0 (2023).
#pragma once

#include "quant/file_bits.h"
#include "quant/planes.h"

namespace pyflow::quant {

// Internal linkage: kernels take its address.
alignas(16) static constexpr int8_t kFp4Points[16] = {
    12, 12 + 1, 12 + 2, 12 + 3, 12 + 4, 12 + 6, 12 + 8, 24,
    12, 12 - 1, 12 - 2, 12 - 3, 12 - 4, 12 - 6, 12 - 8, 0};

struct MXFP4 {
  struct Block {
    uint8_t e, qs[16];
  };
  static_assert(sizeof(Block) == 17);

  static constexpr int kBlock = 32, kPieces = 1, kSubBlock = 32;
  static constexpr int kScaleBytes = 64, kPieceBytes = Nibbles::kBytes;
  static constexpr int kUnitBytes = kScaleBytes + kPieceBytes;
  static constexpr bool kSigned = false, kMinimum = false;
  static constexpr int kMax = 24, kOffset = 12;

  // 2^(e - 128) as bf16.
  static uint16_t scale(uint8_t e) {
    return static_cast<uint16_t>(e < 2 ? 0x20 << e : (e - 1) << 7);
  }
  static uint8_t exponent(uint16_t scale) {
    return static_cast<uint8_t>(scale < 0x80 ? scale >> 6 : (scale >> 7) + 1);
  }

  static void dequantize(const Block& b, float* out) {
    uint8_t q[32];
    get_nibbles(b.qs, 16, q);
    const uint32_t bits = static_cast<uint32_t>(scale(b.e)) << 16;
    float s;
    __builtin_memcpy(&s, &bits, 4);
    for (int j = 0; j < 32; ++j) out[j] = s * static_cast<float>(kFp4Points[q[j]] - kOffset);
  }

  static void pack(const Block* b, int lane, uint8_t* unit) {
    uint8_t q[64];
    for (int i = 0; i < 2; ++i) {
      store16(unit + 32 * i + 2 * lane, scale(b[i].e));
      get_nibbles(b[i].qs, 16, q + 32 * i);
    }
    Nibbles::put(unit + kScaleBytes, lane, q);
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    uint8_t q[64] = {};
    Nibbles::get(unit + kScaleBytes, lane, q);
    for (int i = 0; i < 2; ++i) {
      b[i].e = exponent(load16(unit + 32 * i + 2 * lane));
      set_nibbles(b[i].qs, 16, q + 32 * i);
    }
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Nibbles::load<S, Q>(piece, w);
    for (int i = 0; i < 4; ++i) w[i] = S::lut16(kFp4Points, w[i]);
  }
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F*) {
    const auto* d = reinterpret_cast<const uint16_t*>(unit);
    s[0] = S::load_bf16(d);
    s[1] = S::load_bf16(d + 16);
  }
};

}  // namespace pyflow::quant
