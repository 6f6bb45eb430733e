// Q5_1: 32 weights in 24 bytes, 6 bits each.
//
//   d f16 | m f16 | qh[4] | qs[16]      value j = q * d + m, q as in Q5_0
//
// Tile unit, 16 rows x 64 k, 768 bytes:  d[2][16] f16 | m[2][16] f16 | Nibbles + Bits 640
#pragma once

#include "quant/scaled_block.h"

namespace pyflow::quant {

struct Q5_1 : ScaledBlock<Q5_1, FiveBitCodes, Planes<Nibbles, Bits<4>>, 32, true> {
  static constexpr int kMax = 31, kOffset = 0;
  using Search = AffineBlocks<31, 32>;
};

}  // namespace pyflow::quant
