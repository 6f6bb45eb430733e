// IQ1_M: 256 weights in 56 bytes, 1.75 bits each; sixteen sub-blocks of 16.
//
//   qs[32] | qh[16] | scales u16[4]
//
//   Byte i of qs and nibble i of qh are eight weights: the nibble's low three bits are the high
//   ones of a point g of kIq1Grid, its top bit a sign. Scale j is bits 3 * (j % 4) of scales[j / 4].
//   The top nibbles of the four are d, an f16, from the low end.
//   value = d * (2 * scale + 1) * (g + 1/8, or - 1/8), g of -1, 0 or 1
//
// Tile unit, 16 rows x 256 k, 1728 bytes, 1.93 times the file:  OddScales 192 | 4 x TwoBits + Bits
// 384
#pragma once

#include "quant/file_bits.h"
#include "quant/formats/grid/iq1_s.h"

namespace pyflow::quant {

// 8 g + 1 or 8 g - 1 of a code: g + 1 and, in bit 2, the sign. Internal linkage: kernels take its
// address.
alignas(16) static constexpr int8_t kIq1MPoints[16] = {9 - 7, 9 + 1, 9 + 9, 9,
                                                       9 - 9, 9 - 1, 9 + 7, 9};

struct IQ1_M : UnfoldedBlock<IQ1_M, Planes<TwoBits<0>, Bits<2>>, OddScales<16, 3>, 16> {
  struct Block {
    uint8_t qs[32], qh[16];
    uint16_t scales[4];
  };
  static_assert(sizeof(Block) == 56);

  static constexpr int kMax = 18, kOffset = 9;
  static constexpr int point(uint8_t code) { return kIq1MPoints[code]; }
  template <class S>
  static inline typename S::B points(typename S::B codes) {
    return S::lut16(kIq1MPoints, codes);
  }

  static Fields fields(const Block& b) {
    Fields f;
    uint8_t nibbles[32];
    get_neighbours(b.qh, 16, nibbles);
    for (int i = 0; i < 32; ++i)
      Iq1Codes::get(kIq1Grid[b.qs[i] | (nibbles[i] & 7) << 8], nibbles[i] & 8 ? 255 : 0,
                    f.q + 8 * i);
    for (int i = 0; i < 4; ++i) f.d = static_cast<uint16_t>(f.d | b.scales[i] >> 12 << 4 * i);
    for (int j = 0; j < 16; ++j)
      f.scales[j] = static_cast<uint8_t>(b.scales[j / 4] >> 3 * (j % 4) & 7);
    return f;
  }
  static Block assemble(const Fields& f) {
    Block b = {};
    uint8_t nibbles[32];
    for (int i = 0; i < 32; ++i) {
      const uint8_t* q = f.q + 8 * i;
      const int number = Iq1Codes::number(kIq1Grid, q);
      b.qs[i] = static_cast<uint8_t>(number);
      nibbles[i] = static_cast<uint8_t>((number >> 8 & 7) | (q[0] & 4) << 1);
    }
    set_neighbours(b.qh, 16, nibbles);
    for (int i = 0; i < 4; ++i) b.scales[i] = static_cast<uint16_t>((f.d >> 4 * i & 15) << 12);
    for (int j = 0; j < 16; ++j)
      b.scales[j / 4] = static_cast<uint16_t>(b.scales[j / 4] | f.scales[j] << 3 * (j % 4));
    return b;
  }
};

}  // namespace pyflow::quant
