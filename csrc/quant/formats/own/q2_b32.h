// Q2_B32: 32 weights in 12 bytes, 3 bits each.
//
//   d f16 | m f16 | qs[8] of two bits      value j = q * d + m, q from 0 to 3
//
// Tile unit, 16 rows x 64 k, 384 bytes. linear_block.h draws both.
#pragma once

#include "quant/linear_block.h"

namespace pyflow::quant {

using Q2_B32 = LinearBlock<2, 32>;

}  // namespace pyflow::quant
