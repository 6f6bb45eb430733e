// Q3H_B64: 64 weights in 32 bytes, 4 bits each, of which 3.5 are the weight's own.
//
//   d f16 | m f16 | codes[28]      value j = q * d + m, q from 0 to 10
//
//   The codes are pairs.h's. Tile unit, 16 rows x 64 k, 512 bytes:  d[16] f16 | m[16] f16 |
//   Pairs 448
//
// "Inferflow: an Efficient and Highly Configurable Inference Engine for Large Language Models" (Shi
// et al., 2024), section 3, has blocks of these contents.
#pragma once

#include "quant/encoding.h"
#include "quant/half.h"
#include "quant/linear_block.h"
#include "quant/pairs.h"

namespace pyflow::quant {

// Internal linkage: kernels take its address.
alignas(16) static constexpr Pairs::Table kLevelTable = Pairs::table([](int level) {
  return level;
});

struct Q3H_B64 {
  struct Block {
    uint16_t d, m;
    uint8_t codes[28];
  };
  static_assert(sizeof(Block) == 32);

  static constexpr int kBlock = 64, kPieces = 1, kSubBlock = 32;
  static constexpr int kScaleBytes = 64, kPieceBytes = Pairs::kBytes;
  static constexpr int kUnitBytes = kScaleBytes + kPieceBytes;
  static constexpr bool kSigned = false, kMinimum = true;
  static constexpr int kMax = Pairs::kLevels - 1, kOffset = 0;
  using Search = AffineBlocks<Pairs::kLevels - 1, 64>;

  static void dequantize(const Block& b, float* out) {
    uint8_t q[64];
    Pairs::get(b.codes, q);
    const float d = from_half(b.d), m = from_half(b.m);
    for (int j = 0; j < 64; ++j) out[j] = static_cast<float>(q[j]) * d + m;
  }
  static Block assemble(const Fields& f) {
    Block b = {f.d, f.m, {}};
    Pairs::set(b.codes, f.q);
    return b;
  }

  static void pack(const Block* b, int lane, uint8_t* unit) {
    uint8_t q[64];
    Pairs::get(b->codes, q);
    Pairs::put(unit + kScaleBytes, lane, q);
    store16(unit + 2 * lane, b->d);
    store16(unit + 32 + 2 * lane, b->m);
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    uint8_t q[64];
    Pairs::take(unit + kScaleBytes, lane, q);
    Pairs::set(b->codes, q);
    b->d = load16(unit + 2 * lane);
    b->m = load16(unit + 32 + 2 * lane);
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Pairs::load<S, Q>(piece, kLevelTable, w);
  }
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F* m) {
    line_scales<S, 64>(unit, s, m);
  }
};

}  // namespace pyflow::quant
