// Q4_B64: 64 weights in 36 bytes, 4.5 bits each.
//
//   d f16 | m f16 | qs[32] of nibbles      value j = q * d + m, q from 0 to 15
//
// Tile unit, 16 rows x 64 k, 576 bytes. linear_block.h draws both.
#pragma once

#include "quant/linear_block.h"

namespace pyflow::quant {

using Q4_B64 = LinearBlock<4, 64>;

}  // namespace pyflow::quant
