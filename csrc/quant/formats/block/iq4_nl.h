// IQ4_NL: 32 weights in 18 bytes, 4.5 bits each, on a non-linear grid.
//
//   d f16 | qs[16]      value j = kIq4Grid[nibble] * d, nibbles ordered as in Q4_0
//
// Tile unit, 16 rows x 64 k, 576 bytes:  d[2][16] f16 | Nibbles 512
#pragma once

#include "quant/scaled_block.h"

namespace pyflow::quant {

// Shared with IQ4_XS; from ggml's kvalues_iq4nl. Internal linkage: kernels take its address.
alignas(16) static constexpr int8_t kIq4Grid[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                    1,    13,   25,  38,  53,  69,  89,  113};

using Iq4Points = Points<kIq4Grid, 16>;

struct IQ4_NL : ScaledBlock<IQ4_NL, NibbleCodes, Nibbles, 32, false> {
  static constexpr bool kSigned = true;
  static constexpr int kMax = 127;
  using Search = SymmetricBlocks<Iq4Points, 32, 60, 140, 20>;
  static constexpr int point(uint8_t q) { return kIq4Grid[q]; }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Nibbles::load<S, Q>(piece, w);
    for (int i = 0; i < 4; ++i) w[i] = S::s8_prepare(S::lut16(kIq4Grid, w[i]));
  }
};

}  // namespace pyflow::quant
