// IQ3_S: 256 weights in 110 bytes, 3.4375 bits each; eight sub-blocks of 32.
//
//   d f16 | qs[64] | qh[8] | signs[32] | scales[4]
//
//   Byte i of qs is four weights: the low bits of a point of kIq3SGrid, whose highest is bit i % 8
//   of qh[i / 8]. Bit j % 8 of signs[j / 8] is weight j's. Scale j is the low (even j) or high
//   nibble of scales[j / 2]. value = d * (2 * scale + 1) * (1, 3, .. or 15, with its sign)
//
// Tile unit, 16 rows x 256 k, 2176 bytes, 1.24 times the file:  OddScales 128 | 4 x Nibbles 512
#pragma once

#include "quant/file_bits.h"
#include "quant/formats/grid/iq3_xxs.h"

namespace pyflow::quant {

// Of a level and, in bit 3, a sign. Internal linkage: kernels take its address.
alignas(16) static constexpr int8_t kIq3SPoints[16] = {
    15 + 1, 15 + 3, 15 + 5, 15 + 7, 15 + 9, 15 + 11, 15 + 13, 15 + 15,
    15 - 1, 15 - 3, 15 - 5, 15 - 7, 15 - 9, 15 - 11, 15 - 13, 15 - 15};

struct IQ3_S : UnfoldedBlock<IQ3_S, Nibbles, OddScales<8, 0>, 32> {
  struct Block {
    uint16_t d;
    uint8_t qs[64], qh[8], signs[32], scales[4];
  };
  static_assert(sizeof(Block) == 110);

  static constexpr int kMax = 30, kOffset = 15;
  static constexpr int point(uint8_t code) { return kIq3SPoints[code]; }
  template <class S>
  static inline typename S::B points(typename S::B codes) {
    return S::lut16(kIq3SPoints, codes);
  }

  static Fields fields(const Block& b) {
    Fields f;
    f.d = b.d;
    get_neighbours(b.scales, 4, f.scales);
    for (int i = 0; i < 64; ++i) {
      const int high = b.qh[i / 8] >> i % 8 & 1, signs = b.signs[i / 2] >> 4 * (i % 2);
      Iq3Codes::get(kIq3SGrid[b.qs[i] | high << 8], signs, f.q + 4 * i);
    }
    return f;
  }
  static Block assemble(const Fields& f) {
    Block b = {f.d, {}, {}, {}, {}};
    set_neighbours(b.scales, 4, f.scales);
    for (int i = 0; i < 64; ++i) {
      const int number = Iq3Codes::number(kIq3SGrid, f.q + 4 * i);
      b.qs[i] = static_cast<uint8_t>(number);
      b.qh[i / 8] = static_cast<uint8_t>(b.qh[i / 8] | (number >> 8 & 1) << i % 8);
    }
    for (int i = 0; i < 32; ++i) b.signs[i] = static_cast<uint8_t>(signs_of<3>(f.q + 8 * i));
    return b;
  }
};

}  // namespace pyflow::quant
