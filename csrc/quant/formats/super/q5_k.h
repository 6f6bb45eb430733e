// Q5_K: 256 weights in 176 bytes, 5.5 bits each; eight sub-blocks of 32.
//
//   d f16 | dmin f16 | scales[12] (k_scales.h) | qh[32] | qs[128]
//
//   As Q4_K, with bit j of qh[l] the fifth bit of weight l of sub-block j.
//   value = d * scale * q - dmin * minimum
//
// Tile unit, 16 rows x 256 k, 2816 bytes:  KScales 256 | 4 x Nibbles + Bits 640
#pragma once

#include "quant/k_block.h"

namespace pyflow::quant {

struct KFiveBits {
  static constexpr int kBytes = 32 + KNibbles::kBytes;
  static void get(const uint8_t* codes, uint8_t* q) {
    KNibbles::get(codes + 32, q);
    get_bits(codes, q, 4);
  }
  static void set(uint8_t* codes, const uint8_t* q) {
    KNibbles::set(codes + 32, q);
    set_bits(codes, q, 4);
  }
};

struct Q5_K : KBlock<KFiveBits, Planes<Nibbles, Bits<4>>, 31> {};

}  // namespace pyflow::quant
