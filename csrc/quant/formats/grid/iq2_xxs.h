// IQ2_XXS: 256 weights in 66 bytes, 2.0625 bits each; eight sub-blocks of 32.
//
//   d f16 | 8 x (numbers[4], word u32)
//
//   Each number is a point of kIq2XxsGrid, eight weights. The word has seven signs for each point,
//   from the low end, and in its top four bits the scale.
//   value = d * (2 * scale + 1) / 8 * (8, 25 or 43, with its sign)
//
// Tile unit, 16 rows x 256 k, 1664 bytes, 1.58 times the file:  OddScales 128 | 4 x TwoBits + Bits
// 384
#pragma once

#include "quant/grids/iq2.h"
#include "quant/lattice.h"
#include "quant/unfolded_block.h"

namespace pyflow::quant {

// Of a level and, in bit 2, a sign. Internal linkage: kernels take its address.
alignas(16) static constexpr int8_t kIq2Points[16] = {43 + 8, 43 + 25, 43 + 43, 43,
                                                      43 - 8, 43 - 25, 43 - 43, 43};

using Iq2Codes = Lattice<8, 2>;
using Iq2Planes = Planes<TwoBits<0>, Bits<2>>;

// What formats of these points share.
template <class Format, int SubBlock>
struct Iq2Block : UnfoldedBlock<Format, Iq2Planes, OddScales<256 / SubBlock, 3>, SubBlock> {
  static constexpr int kMax = 86, kOffset = 43;
  static constexpr int point(uint8_t code) { return kIq2Points[code]; }
  template <class S>
  static inline typename S::B points(typename S::B codes) {
    return S::lut16(kIq2Points, codes);
  }
};

struct IQ2_XXS : Iq2Block<IQ2_XXS, 32> {
  struct Block {
    uint16_t d;
    uint8_t qs[64];
  };
  static_assert(sizeof(Block) == 66);

  static Fields fields(const Block& b) {
    Fields f;
    f.d = b.d;
    for (int i = 0; i < 8; ++i) {
      const uint8_t* qs = b.qs + 8 * i;
      const uint32_t word = load32(qs + 4);
      f.scales[i] = static_cast<uint8_t>(word >> 28);
      for (int l = 0; l < 4; ++l)
        Iq2Codes::get(kIq2XxsGrid[qs[l]], eight_signs(word >> 7 * l & 127), f.q + 32 * i + 8 * l);
    }
    return f;
  }
  static Block assemble(const Fields& f) {
    Block b = {f.d, {}};
    for (int i = 0; i < 8; ++i) {
      uint32_t word = static_cast<uint32_t>(f.scales[i]) << 28;
      for (int l = 0; l < 4; ++l) {
        const uint8_t* q = f.q + 32 * i + 8 * l;
        b.qs[8 * i + l] = static_cast<uint8_t>(Iq2Codes::number(kIq2XxsGrid, q));
        word |= static_cast<uint32_t>(signs_of<2>(q) & 127) << 7 * l;
      }
      store32(b.qs + 8 * i + 4, word);
    }
    return b;
  }
};

}  // namespace pyflow::quant
