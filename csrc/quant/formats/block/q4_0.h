// Q4_0: 32 weights in 18 bytes, 4.5 bits each.
//
//   d f16 | qs[16]      value j      = (low nibble of qs[j]  - 8) * d     j < 16
//                       value j + 16 = (high nibble of qs[j] - 8) * d
//
// Tile unit, 16 rows x 64 k, 576 bytes:  d[2][16] f16 | Nibbles 512
#pragma once

#include "quant/scaled_block.h"

namespace pyflow::quant {

struct Q4_0 : ScaledBlock<Q4_0, NibbleCodes, Nibbles, 32, false> {
  static constexpr int kMax = 15, kOffset = 8;
  using Search = SymmetricBlocks<Integers<-8, 7>, 32, 50, 140, 28>;
  static constexpr int point(uint8_t q) { return q - kOffset; }
};

}  // namespace pyflow::quant
