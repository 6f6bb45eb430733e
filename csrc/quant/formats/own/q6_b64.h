// Q6_B64: 64 weights in 52 bytes, 6.5 bits each.
//
//   d f16 | m f16 | qs[32] of nibbles | qh[16] of two bits      value j = q * d + m, q from 0 to 63
//
// Tile unit, 16 rows x 64 k, 832 bytes. linear_block.h draws both.
#pragma once

#include "quant/linear_block.h"

namespace pyflow::quant {

using Q6_B64 = LinearBlock<6, 64>;

}  // namespace pyflow::quant
