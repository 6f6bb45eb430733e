// Q4_K: 256 weights in 144 bytes, 4.5 bits each; eight sub-blocks of 32.
//
//   d f16 | dmin f16 | scales[12] (k_scales.h) | qs[128]
//
//   Each 32 bytes of qs are two sub-blocks: the low nibbles, then the high ones.
//   value = d * scale * q - dmin * minimum, scale and minimum those of the sub-block
//
// Tile unit, 16 rows x 256 k, 2304 bytes:  KScales 256 | 4 x Nibbles 512
#pragma once

#include "quant/k_block.h"

namespace pyflow::quant {

struct Q4_K : KBlock<KNibbles, Nibbles, 15> {};

}  // namespace pyflow::quant
