// Q8_B32: 32 weights in 36 bytes, 9 bits each.
//
//   d f16 | m f16 | qs[32]      value j = q * d + m, q from 0 to 255
//
// Tile unit, 16 rows x 64 k, 1152 bytes. linear_block.h draws both.
#pragma once

#include "quant/linear_block.h"

namespace pyflow::quant {

using Q8_B32 = LinearBlock<8, 32>;

}  // namespace pyflow::quant
