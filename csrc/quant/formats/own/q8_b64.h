// Q8_B64: 64 weights in 68 bytes, 8.5 bits each.
//
//   d f16 | m f16 | qs[64]      value j = q * d + m, q from 0 to 255
//
// Tile unit, 16 rows x 64 k, 1088 bytes. linear_block.h draws both.
#pragma once

#include "quant/linear_block.h"

namespace pyflow::quant {

using Q8_B64 = LinearBlock<8, 64>;

}  // namespace pyflow::quant
