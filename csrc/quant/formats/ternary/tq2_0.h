// TQ2_0: 256 weights of -1, 0 or 1 in 66 bytes, 2.0625 bits each.
//
//   qs[64] | d f16      value = d * (q - 1), q two bits of qs, ordered as in Q2_K
//
// Tile unit, 16 rows x 256 k, 1088 bytes, 3 % more than the file:  OneScale 64 | 4 x TwoBits 256
#pragma once

#include "quant/file_bits.h"
#include "quant/unfolded_block.h"

namespace pyflow::quant {

struct TQ2_0 : UnfoldedBlock<TQ2_0, TwoBits<0>, OneScale, 32> {
  struct Block {
    uint8_t qs[64];
    uint16_t d;
  };
  static_assert(sizeof(Block) == 66);

  static constexpr int kMax = 3, kOffset = 1;

  static Fields fields(const Block& b) {
    Fields f;
    f.d = b.d;
    get_two_bits(b.qs, f.q, 0);
    return f;
  }
  static Block assemble(const Fields& f) {
    Block b = {{}, f.d};
    set_two_bits(b.qs, f.q, 0);
    return b;
  }
};

}  // namespace pyflow::quant
