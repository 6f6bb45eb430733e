// Q5_B64: 64 weights in 44 bytes, 5.5 bits each.
//
//   d f16 | m f16 | qs[32] of nibbles | qh[8] of one bit      value j = q * d + m, q from 0 to 31
//
// Tile unit, 16 rows x 64 k, 704 bytes. linear_block.h draws both.
#pragma once

#include "quant/linear_block.h"

namespace pyflow::quant {

using Q5_B64 = LinearBlock<5, 64>;

}  // namespace pyflow::quant
