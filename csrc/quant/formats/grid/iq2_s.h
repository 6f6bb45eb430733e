// IQ2_S: 256 weights in 82 bytes, 2.5625 bits each; sixteen sub-blocks of 16.
//
//   d f16 | qs[32] | signs[32] | qh[8] | scales[8]
//
//   Byte i of qs and of signs are eight weights: the low bits of a point of kIq2SGrid, whose high
//   two are bits 2 * (i % 4) of qh[i / 4], and the signs. Scales are IQ2_XS's.
//   value = d * (2 * scale + 1) / 8 * (8, 25 or 43, with its sign)
//
// Tile unit, 16 rows x 256 k, 1728 bytes, 1.32 times the file:  OddScales 192 | 4 x TwoBits + Bits
// 384
#pragma once

#include "quant/file_bits.h"
#include "quant/formats/grid/iq2_xxs.h"

namespace pyflow::quant {

struct IQ2_S : Iq2Block<IQ2_S, 16> {
  struct Block {
    uint16_t d;
    uint8_t qs[32], signs[32], qh[8], scales[8];
  };
  static_assert(sizeof(Block) == 82);

  static Fields fields(const Block& b) {
    Fields f;
    f.d = b.d;
    get_neighbours(b.scales, 8, f.scales);
    for (int i = 0; i < 32; ++i) {
      const int high = b.qh[i / 4] >> 2 * (i % 4) & 3;
      Iq2Codes::get(kIq2SGrid[b.qs[i] | high << 8], b.signs[i], f.q + 8 * i);
    }
    return f;
  }
  static Block assemble(const Fields& f) {
    Block b = {f.d, {}, {}, {}, {}};
    set_neighbours(b.scales, 8, f.scales);
    for (int i = 0; i < 32; ++i) {
      const uint8_t* q = f.q + 8 * i;
      const int number = Iq2Codes::number(kIq2SGrid, q);
      b.qs[i] = static_cast<uint8_t>(number);
      b.qh[i / 4] = static_cast<uint8_t>(b.qh[i / 4] | (number >> 8 & 3) << 2 * (i % 4));
      b.signs[i] = static_cast<uint8_t>(signs_of<2>(q));
    }
    return b;
  }
};

}  // namespace pyflow::quant
