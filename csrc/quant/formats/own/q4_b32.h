// Q4_B32: 32 weights in 20 bytes, 5 bits each.
//
//   d f16 | m f16 | qs[16] of nibbles      value j = q * d + m, q from 0 to 15
//
// Tile unit, 16 rows x 64 k, 640 bytes. linear_block.h draws both.
#pragma once

#include "quant/linear_block.h"

namespace pyflow::quant {

using Q4_B32 = LinearBlock<4, 32>;

}  // namespace pyflow::quant
