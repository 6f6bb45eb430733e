// Q5_K: 256 weights in 176 bytes, 5.5 bits each; eight sub-blocks of 32.
//
//   d f16 | dmin f16 | scales[12] (k_scales.h) | qh[32] | qs[128]
//
//   As Q4_K, with bit j of qh[l] the fifth bit of weight l of sub-block j.
//   value = d * scale * q - dmin * minimum
//
// Tile unit, 16 rows x 256 k, 2816 bytes:  KScales 256 | 4 x Nibbles + Bits 640
#pragma once

#include "quant/encoding.h"
#include "quant/file_bits.h"
#include "quant/k_scales.h"

namespace pyflow::quant {

struct Q5_K {
  struct Block {
    uint16_t d, dmin;
    uint8_t scales[12], qh[32], qs[128];
  };
  static_assert(sizeof(Block) == 176);
  using Weights = Planes<Nibbles, Bits<4>>;

  static constexpr int kBlock = 256, kPieces = 4, kSubBlock = 32;
  static constexpr int kScaleBytes = KScales::kTileBytes, kPieceBytes = Weights::kBytes;
  static constexpr int kUnitBytes = kScaleBytes + 4 * kPieceBytes;
  static constexpr bool kSigned = false, kMinimum = true;
  static constexpr int kMax = 31, kOffset = 0;
  using Search = AffineSuperBlocks<31, 32, 8, 63>;

  static void integers(const Block& b, uint8_t* q) {
    for (int g = 0; g < 4; ++g) get_nibbles(b.qs + 32 * g, 32, q + 64 * g);
    get_bits(b.qh, q, 4);
  }

  static void dequantize(const Block& b, float* out) {
    uint8_t q[256];
    integers(b, q);
    const float d = from_half(b.d), dmin = from_half(b.dmin);
    for (int j = 0; j < 8; ++j) {
      const float s = d * static_cast<float>(KScales::scale(b.scales, j));
      const float m = dmin * static_cast<float>(KScales::minimum(b.scales, j));
      for (int l = 32 * j; l < 32 * j + 32; ++l) out[l] = s * static_cast<float>(q[l]) - m;
    }
  }
  static Block assemble(const Fields& f) {
    Block b = {f.d, f.m, {}, {}, {}};
    KScales::set(b.scales, f.scales, f.minimums);
    for (int g = 0; g < 4; ++g) set_nibbles(b.qs + 32 * g, 32, f.q + 64 * g);
    set_bits(b.qh, f.q, 4);
    return b;
  }

  static void pack(const Block* b, int lane, uint8_t* unit) {
    uint8_t q[256];
    integers(*b, q);
    for (int g = 0; g < 4; ++g)
      Weights::put(unit + kScaleBytes + kPieceBytes * g, lane, q + 64 * g);
    KScales::put(unit, lane, b->d, b->dmin, b->scales);
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    uint8_t q[256] = {};
    *b = {};
    for (int g = 0; g < 4; ++g) {
      Weights::get(unit + kScaleBytes + kPieceBytes * g, lane, q + 64 * g);
      set_nibbles(b->qs + 32 * g, 32, q + 64 * g);
    }
    set_bits(b->qh, q, 4);
    KScales::get(unit, lane, b->d, b->dmin, b->scales);
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Weights::load<S, Q>(piece, w);
  }
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F* m) {
    KScales::load<S>(unit, s, m);
  }
};

}  // namespace pyflow::quant
