// Q3H_NL: 32 weights in 16 bytes, 4 bits each, of which 3.5 are the weight's own.
//
//   d f16 | codes[14]      value = d * (kPairGrid[q] - kPairZero)
//
//   The codes are pairs.h's, q from 0 to 10. The points are those of Q3H_K, which has scales of 6
//   bits instead: Q3H_NL serves rows that are no multiple of 256.
//
// Tile unit, 16 rows x 64 k, 512 bytes:  d[2][16] f16 | Pairs 448
#pragma once

#include "quant/formats/own/q3h_k.h"
#include "quant/pairs.h"
#include "quant/scaled_block.h"

namespace pyflow::quant {

struct Q3H_NL : ScaledBlock<Q3H_NL, PairCodes<32>, Pairs, 32, false> {
  static constexpr int kMax = Q3H_K::kMax, kOffset = kPairZero;
  using Search = SymmetricBlocks<Points<kPairGrid, Pairs::kLevels, kPairZero>, 32, 60, 140, 20>;
  static constexpr int point(uint8_t q) { return kPairGrid[q] - kPairZero; }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Pairs::load<S, Q>(piece, kPointTable, w);
  }
};

}  // namespace pyflow::quant
