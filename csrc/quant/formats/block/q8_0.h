// Q8_0: 32 weights in 34 bytes, 8.5 bits each.
//
//   d f16 | qs[32] i8      value j = qs[j] * d
//
// Tile unit, 16 rows x 64 k, 1088 bytes:  d[2][16] f16 | Bytes 1024
#pragma once

#include "quant/scaled_block.h"

namespace pyflow::quant {

struct ByteCodes {
  static constexpr int kBytes = 32;
  static void get(const uint8_t* codes, uint8_t* q) { __builtin_memcpy(q, codes, kBytes); }
  static void set(uint8_t* codes, const uint8_t* q) { __builtin_memcpy(codes, q, kBytes); }
};

struct Q8_0 : ScaledBlock<Q8_0, ByteCodes, Bytes, 32, false> {
  static constexpr bool kSigned = true;
  static constexpr int kMax = 128;
  using Search = SymmetricBlocks<Integers<-127, 127>, 32, 93, 101, 20>;
  static constexpr int point(uint8_t q) { return static_cast<int8_t>(q); }
  static constexpr uint8_t code(uint8_t level) { return static_cast<uint8_t>(level - 127); }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Bytes::load<S, Q>(piece, w);
    for (int i = 0; i < 4; ++i) w[i] = S::s8_prepare(w[i]);
  }
};

}  // namespace pyflow::quant
