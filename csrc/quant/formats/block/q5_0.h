// Q5_0: 32 weights in 22 bytes, 5.5 bits each.
//
//   d f16 | qh[4] | qs[16]      value j = (q - 16) * d, q = nibble as in Q4_0 + 16 * (bit j of qh)
//
// Tile unit, 16 rows x 64 k, 704 bytes:  d[2][16] f16 | Nibbles + Bits 640
#pragma once

#include "quant/scaled_block.h"

namespace pyflow::quant {

struct Q5_0 : ScaledBlock<Q5_0, FiveBitCodes, Planes<Nibbles, Bits<4>>, 32, false> {
  static constexpr int kMax = 31, kOffset = 16;
  using Search = SymmetricBlocks<Integers<-16, 15>, 32, 60, 120, 28>;
  static constexpr int point(uint8_t q) { return q - kOffset; }
};

}  // namespace pyflow::quant
