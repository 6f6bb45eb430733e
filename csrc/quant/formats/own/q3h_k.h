// Q3H_K: 256 weights in 120 bytes, 3.75 bits each, of which 3.5 are the weight's own; eight
// sub-blocks of 32.
//
//   d f16 | scales_h u16 | scales_l[4] | codes[4][28]
//
//   codes[g] is of weights 64g .. 64g+63, as pairs.h has them: q from 0 to 10. The scales are
//   short_scales.h's. value = d * (scale - 32) * (kPairGrid[q] - kPairZero)
//
// Eleven points, closer together near zero, lose 25 % less (squared error of normal weights) than
// as many even steps; uneven ones of which the scale's sign chooses either direction, 13 % less
// than those that are the same on both sides of zero.
//
// Tile unit, 16 rows x 256 k, 1920 bytes:  ShortScales 128 | 4 x Pairs 448
#pragma once

#include "quant/encoding.h"
#include "quant/half.h"
#include "quant/pairs.h"
#include "quant/short_scales.h"

namespace pyflow::quant {

// Those of least squared error for normal weights, moved onto whole numbers so close together that
// AVX2 adds two products before they leave 16 bits: 0.5 % more error. Sixteen, as a table of the
// search has. Internal linkage: kernels take its address.
alignas(16) static constexpr int8_t kPairGrid[16] = {0,  9,  16, 22, 27, 32, 37, 42,
                                                     47, 53, 61, 61, 61, 61, 61, 61};
static constexpr int kPairZero = 34;
alignas(16) static constexpr Pairs::Table kPointTable = Pairs::table([](int level) {
  return kPairGrid[level];
});

struct Q3H_K {
  struct Block {
    ShortScales scales;
    uint8_t codes[4][Pairs::kRowBytes];
  };
  static_assert(sizeof(Block) == 120);

  static constexpr int kBlock = 256, kPieces = 4, kSubBlock = 32;
  static constexpr int kScaleBytes = ShortScales::kTileBytes, kPieceBytes = Pairs::kBytes;
  static constexpr int kUnitBytes = kScaleBytes + 4 * kPieceBytes;
  static constexpr bool kSigned = false, kMinimum = false;
  static constexpr int kMax = 61, kOffset = kPairZero;
  using Search = SymmetricSuperBlocks<Points<kPairGrid, Pairs::kLevels, kPairZero>, 32, 8, -32, 31,
                                      60, 140, 20>;

  static void dequantize(const Block& b, float* out) {
    const float d = from_half(b.scales.d);
    for (int g = 0; g < 4; ++g) {
      uint8_t q[64];
      Pairs::get(b.codes[g], q);
      for (int l = 0; l < 64; ++l)
        out[64 * g + l] = d * static_cast<float>(b.scales.get(2 * g + l / 32)) *
                          static_cast<float>(kPairGrid[q[l]] - kPairZero);
    }
  }
  static Block assemble(const Fields& f) {
    Block b = {};
    b.scales.set(f);
    for (int g = 0; g < 4; ++g) Pairs::set(b.codes[g], f.q + 64 * g);
    return b;
  }

  static void pack(const Block* b, int lane, uint8_t* unit) {
    for (int g = 0; g < 4; ++g) {
      uint8_t q[64];
      Pairs::get(b->codes[g], q);
      Pairs::put(unit + kScaleBytes + kPieceBytes * g, lane, q);
    }
    b->scales.put(unit, lane);
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    for (int g = 0; g < 4; ++g) {
      uint8_t q[64];
      Pairs::get(unit + kScaleBytes + kPieceBytes * g, lane, q);
      Pairs::set(b->codes[g], q);
    }
    b->scales.take(unit, lane);
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Pairs::load<S, Q>(piece, kPointTable, w);
  }
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F*) {
    ShortScales::load<S>(unit, s);
  }
};

}  // namespace pyflow::quant
