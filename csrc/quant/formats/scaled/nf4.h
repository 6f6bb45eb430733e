// NF4: 64 weights in 36 bytes (4.5 bits), bitsandbytes' codes of "QLoRA: Efficient Finetuning of
// Quantized LLMs" (Dettmers et al., 2023): sixteen quantiles of a normal distribution, -1 to 1.
// table16.h draws the block.
#pragma once

#include "quant/formats/scaled/table16.h"

namespace pyflow::quant {

alignas(64) static constexpr float kNf4Values[16] = {
    -0x1p+0f,        -0x1.647362p-1f, -0x1.0cd66p-1f,  -0x1.94654p-2f,
    -0x1.23449ap-2f, -0x1.7a6a7ep-3f, -0x1.74f0e2p-4f, 0.0f,
    0x1.45f5fep-4f,  0x1.4995c6p-3f,  0x1.f809bap-3f,  0x1.5a0674p-2f,
    0x1.c3497p-2f,   0x1.200f56p-1f,  0x1.722766p-1f,  0x1p+0f,
};

struct NF4 : Table16<NF4> {
  template <class S>
  static const float* table() {
    return kNf4Values;
  }
};

}  // namespace pyflow::quant
