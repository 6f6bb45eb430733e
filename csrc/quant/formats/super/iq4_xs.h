// IQ4_XS: 256 weights in 136 bytes, 4.25 bits each; eight sub-blocks of 32 on IQ4_NL's grid.
//
//   d f16 | scales_h u16 | scales_l[4] | qs[128]
//
//   The scales are short_scales.h's. Sixteen bytes of qs per sub-block, nibbles ordered as in Q4_0.
//   value = d * (scale - 32) * kIq4Grid[nibble]
//
// Tile unit, 16 rows x 256 k, 2176 bytes:  ShortScales 128 | 4 x Nibbles 512
#pragma once

#include "quant/encoding.h"
#include "quant/formats/block/iq4_nl.h"
#include "quant/short_scales.h"

namespace pyflow::quant {

struct IQ4_XS {
  struct Block {
    ShortScales scales;
    uint8_t qs[128];
  };
  static_assert(sizeof(Block) == 136);

  static constexpr int kBlock = 256, kPieces = 4, kSubBlock = 32;
  static constexpr int kScaleBytes = ShortScales::kTileBytes, kPieceBytes = Nibbles::kBytes;
  static constexpr int kUnitBytes = kScaleBytes + 4 * kPieceBytes;
  static constexpr bool kSigned = true, kMinimum = false;
  static constexpr int kMax = 127;
  using Search = SymmetricSuperBlocks<Iq4Points, 32, 8, -32, 31, 60, 140, 20>;

  static void dequantize(const Block& b, float* out) {
    const float d = from_half(b.scales.d);
    for (int j = 0; j < 8; ++j) {
      uint8_t q[32];
      get_nibbles(b.qs + 16 * j, 16, q);
      const float s = d * static_cast<float>(b.scales.get(j));
      for (int l = 0; l < 32; ++l) out[32 * j + l] = s * static_cast<float>(kIq4Grid[q[l]]);
    }
  }
  static Block assemble(const Fields& f) {
    Block b = {};
    b.scales.set(f);
    for (int j = 0; j < 8; ++j) set_nibbles(b.qs + 16 * j, 16, f.q + 32 * j);
    return b;
  }

  static void pack(const Block* b, int lane, uint8_t* unit) {
    uint8_t q[256];
    for (int j = 0; j < 8; ++j) get_nibbles(b->qs + 16 * j, 16, q + 32 * j);
    for (int g = 0; g < 4; ++g)
      Nibbles::put(unit + kScaleBytes + kPieceBytes * g, lane, q + 64 * g);
    b->scales.put(unit, lane);
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    uint8_t q[256] = {};
    for (int g = 0; g < 4; ++g)
      Nibbles::get(unit + kScaleBytes + kPieceBytes * g, lane, q + 64 * g);
    for (int j = 0; j < 8; ++j) set_nibbles(b->qs + 16 * j, 16, q + 32 * j);
    b->scales.take(unit, lane);
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Nibbles::load<S, Q>(piece, w);
    for (int i = 0; i < 4; ++i) w[i] = S::s8_prepare(S::lut16(kIq4Grid, w[i]));
  }
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F*) {
    ShortScales::load<S>(unit, s);
  }
};

}  // namespace pyflow::quant
