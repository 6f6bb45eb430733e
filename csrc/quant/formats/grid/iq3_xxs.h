// IQ3_XXS: 256 weights in 98 bytes, 3.0625 bits each; eight sub-blocks of 32.
//
//   d f16 | qs[64] | words u32[8]
//
//   A byte of qs is a point of kIq3XxsGrid, four weights. A word has seven signs for each two
//   points, from the low end, and in its top four bits the scale.
//   value = d * (2 * scale + 1) / 4 * (4, 12, 20, 28, 36, 44, 52 or 62, with its sign)
//
// Tile unit, 16 rows x 256 k, 2176 bytes, 1.39 times the file:  OddScales 128 | 4 x Nibbles 512
#pragma once

#include "quant/grids/iq3.h"
#include "quant/lattice.h"
#include "quant/unfolded_block.h"

namespace pyflow::quant {

// Of a level and, in bit 3, a sign. Internal linkage: kernels take its address.
alignas(16) static constexpr int8_t kIq3XxsPoints[16] = {
    62 + 4, 62 + 12, 62 + 20, 62 + 28, 62 + 36, 62 + 44, 62 + 52, 62 + 62,
    62 - 4, 62 - 12, 62 - 20, 62 - 28, 62 - 36, 62 - 44, 62 - 52, 62 - 62};

using Iq3Codes = Lattice<4, 3>;

struct IQ3_XXS : UnfoldedBlock<IQ3_XXS, Nibbles, OddScales<8, 2>, 32> {
  struct Block {
    uint16_t d;
    uint8_t qs[64], words[32];
  };
  static_assert(sizeof(Block) == 98);

  static constexpr int kMax = 124, kOffset = 62;
  static constexpr int point(uint8_t code) { return kIq3XxsPoints[code]; }
  template <class S>
  static inline typename S::B points(typename S::B codes) {
    return S::lut16(kIq3XxsPoints, codes);
  }

  static Fields fields(const Block& b) {
    Fields f;
    f.d = b.d;
    for (int i = 0; i < 8; ++i) {
      const uint32_t word = load32(b.words + 4 * i);
      f.scales[i] = static_cast<uint8_t>(word >> 28);
      for (int l = 0; l < 8; ++l) {
        const int signs = eight_signs(word >> 7 * (l / 2) & 127) >> 4 * (l % 2);
        Iq3Codes::get(kIq3XxsGrid[b.qs[8 * i + l]], signs, f.q + 32 * i + 4 * l);
      }
    }
    return f;
  }
  static Block assemble(const Fields& f) {
    Block b = {f.d, {}, {}};
    for (int i = 0; i < 64; ++i)
      b.qs[i] = static_cast<uint8_t>(Iq3Codes::number(kIq3XxsGrid, f.q + 4 * i));
    for (int i = 0; i < 8; ++i) {
      uint32_t word = static_cast<uint32_t>(f.scales[i]) << 28;
      for (int l = 0; l < 4; ++l)
        word |= static_cast<uint32_t>(signs_of<3>(f.q + 32 * i + 8 * l) & 127) << 7 * l;
      store32(b.words + 4 * i, word);
    }
    return b;
  }
};

}  // namespace pyflow::quant
