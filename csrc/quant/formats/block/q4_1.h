// Q4_1: 32 weights in 20 bytes, 5 bits each.
//
//   d f16 | m f16 | qs[16]      value j = q * d + m, q a nibble, ordered as in Q4_0
//
// Tile unit, 16 rows x 64 k, 640 bytes:  d[2][16] f16 | m[2][16] f16 | Nibbles 512
#pragma once

#include "quant/scaled_block.h"

namespace pyflow::quant {

struct Q4_1 : ScaledBlock<Q4_1, NibbleCodes, Nibbles, 32, true> {
  static constexpr int kMax = 15, kOffset = 0;
  using Search = AffineBlocks<15, 32>;
};

}  // namespace pyflow::quant
