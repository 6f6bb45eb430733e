// IQ2_XS: 256 weights in 74 bytes, 2.3125 bits each; sixteen sub-blocks of 16.
//
//   d f16 | words u16[32] | scales[8]
//
//   A word is eight weights: in the low nine bits a point of kIq2XsGrid, above them seven signs.
//   Scale j is the low (even j) or high nibble of scales[j / 2].
//   value = d * (2 * scale + 1) / 8 * (8, 25 or 43, with its sign)
//
// Tile unit, 16 rows x 256 k, 1728 bytes, 1.46 times the file:  OddScales 192 | 4 x TwoBits + Bits
// 384
#pragma once

#include "quant/file_bits.h"
#include "quant/formats/grid/iq2_xxs.h"

namespace pyflow::quant {

struct IQ2_XS : Iq2Block<IQ2_XS, 16> {
  struct Block {
    uint16_t d;
    uint16_t words[32];
    uint8_t scales[8];
  };
  static_assert(sizeof(Block) == 74);

  static Fields fields(const Block& b) {
    Fields f;
    f.d = b.d;
    get_neighbours(b.scales, 8, f.scales);
    for (int i = 0; i < 32; ++i)
      Iq2Codes::get(kIq2XsGrid[b.words[i] & 511], eight_signs(b.words[i] >> 9), f.q + 8 * i);
    return f;
  }
  static Block assemble(const Fields& f) {
    Block b = {f.d, {}, {}};
    set_neighbours(b.scales, 8, f.scales);
    for (int i = 0; i < 32; ++i) {
      const uint8_t* q = f.q + 8 * i;
      const int number = Iq2Codes::number(kIq2XsGrid, q);
      b.words[i] = static_cast<uint16_t>(number | (signs_of<2>(q) & 127) << 9);
    }
    return b;
  }
};

}  // namespace pyflow::quant
