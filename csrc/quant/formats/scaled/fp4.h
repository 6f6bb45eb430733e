// FP4: 64 weights in 36 bytes (4.5 bits), bitsandbytes' floats of one sign, two exponent bits and one
// of mantissa, as parts of the largest: 0, 1/192, 2/3, 1, 1/3, 1/2, 1/6, 1/4. table16.h draws the
// block.
#pragma once

#include "quant/formats/scaled/table16.h"

namespace pyflow::quant {

alignas(64) static constexpr float kFp4Values[16] = {
    0.0f,
    0x1.555556p-8f,
    0x1.555556p-1f,
    0x1p+0f,
    0x1.555556p-2f,
    0x1p-1f,
    0x1.555556p-3f,
    0x1p-2f,
    0.0f,
    -0x1.555556p-8f,
    -0x1.555556p-1f,
    -0x1p+0f,
    -0x1.555556p-2f,
    -0x1p-1f,
    -0x1.555556p-3f,
    -0x1p-2f,
};

struct FP4 : Table16<FP4> {
  template <class S>
  static const float* table() {
    return kFp4Values;
  }
};

}  // namespace pyflow::quant
