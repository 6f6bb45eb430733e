// Super-blocks of eight sub-blocks of 32 weights, each with a 6-bit scale and minimum.
//
//   d f16 | dmin f16 | scales[12] (k_scales.h) | codes
//   value = d * scale * q - dmin * minimum, scale and minimum those of the sub-block
//
// Tile unit, 16 rows x 256 k:  KScales 256 | 4 x the planes
//
// Codes and Planes are as in scaled_block.h, of 256 weights and of 64.
#pragma once

#include "quant/encoding.h"
#include "quant/file_bits.h"
#include "quant/k_scales.h"

namespace pyflow::quant {

template <class Codes, class Planes, int Max>
struct KBlock {
  struct Block {
    uint16_t d, dmin;
    uint8_t scales[12], codes[Codes::kBytes];
  };
  static_assert(sizeof(Block) == 16 + Codes::kBytes);

  static constexpr int kBlock = 256, kPieces = 4, kSubBlock = 32;
  static constexpr int kScaleBytes = KScales::kTileBytes, kPieceBytes = Planes::kBytes;
  static constexpr int kUnitBytes = kScaleBytes + 4 * kPieceBytes;
  static constexpr bool kSigned = false, kMinimum = true;
  static constexpr int kMax = Max, kOffset = 0;
  using Search = AffineSuperBlocks<Max, 32, 8, 63>;

  static void dequantize(const Block& b, float* out) {
    uint8_t q[256];
    Codes::get(b.codes, q);
    const float d = from_half(b.d), dmin = from_half(b.dmin);
    for (int j = 0; j < 8; ++j) {
      const float s = d * static_cast<float>(KScales::scale(b.scales, j));
      const float m = dmin * static_cast<float>(KScales::minimum(b.scales, j));
      for (int l = 32 * j; l < 32 * j + 32; ++l) out[l] = s * static_cast<float>(q[l]) - m;
    }
  }
  static Block assemble(const Fields& f) {
    Block b = {f.d, f.m, {}, {}};
    KScales::set(b.scales, f.scales, f.minimums);
    Codes::set(b.codes, f.q);
    return b;
  }

  static void pack(const Block* b, int lane, uint8_t* unit) {
    uint8_t q[256];
    Codes::get(b->codes, q);
    for (int g = 0; g < 4; ++g) Planes::put(unit + kScaleBytes + kPieceBytes * g, lane, q + 64 * g);
    KScales::put(unit, lane, b->d, b->dmin, b->scales);
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    uint8_t q[256] = {};
    for (int g = 0; g < 4; ++g) Planes::get(unit + kScaleBytes + kPieceBytes * g, lane, q + 64 * g);
    *b = {};
    Codes::set(b->codes, q);
    KScales::get(unit, lane, b->d, b->dmin, b->scales);
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Planes::template load<S, Q>(piece, w);
  }
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F* m) {
    KScales::load<S>(unit, s, m);
  }
};

// Each 32 bytes are two sub-blocks: the low nibbles, then the high ones.
struct KNibbles {
  static constexpr int kBytes = 128;
  static void get(const uint8_t* codes, uint8_t* q) {
    for (int g = 0; g < 4; ++g) get_nibbles(codes + 32 * g, 32, q + 64 * g);
  }
  static void set(uint8_t* codes, const uint8_t* q) {
    for (int g = 0; g < 4; ++g) set_nibbles(codes + 32 * g, 32, q + 64 * g);
  }
};

}  // namespace pyflow::quant
