// Q3_B32: 32 weights in 16 bytes, 4 bits each.
//
//   d f16 | m f16 | qs[8] of two bits | qh[4] of one      value j = q * d + m, q from 0 to 7
//
// Tile unit, 16 rows x 64 k, 512 bytes. linear_block.h draws both.
#pragma once

#include "quant/linear_block.h"

namespace pyflow::quant {

using Q3_B32 = LinearBlock<3, 32>;

}  // namespace pyflow::quant
