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

#include "quant/pairs.h"
#include "quant/scaled_block.h"

namespace pyflow::quant {

// Internal linkage: kernels take its address.
alignas(16) static constexpr Pairs::Table kLevelTable = Pairs::table([](int level) {
  return level;
});

struct Q3H_B64 : ScaledBlock<Q3H_B64, PairCodes<64>, Pairs, 64, true> {
  static constexpr int kMax = Pairs::kLevels - 1, kOffset = 0;
  using Search = AffineBlocks<Pairs::kLevels - 1, 64>;

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Pairs::load<S, Q>(piece, kLevelTable, w);
  }
};

}  // namespace pyflow::quant
