// Q3H_NL: 32 weights in 16 bytes, 4 bits each, of which 3.5 are the weight's own.
//
//   d f16 | codes[14]      value = d * (kPairGrid[q] - kPairZero)
//
//   The codes are pairs.h's, q from 0 to 10, and the points are those of Q3H_K, which has scales of
//   6 bits instead: this is for rows that are no multiple of 256, and for who has the bytes.
//
// Tile unit, 16 rows x 64 k, 512 bytes:  d[2][16] f16 | Pairs 448
#pragma once

#include "quant/encoding.h"
#include "quant/formats/q3h_k.h"
#include "quant/half.h"
#include "quant/pairs.h"

namespace pyflow::quant {

struct Q3H_NL {
  struct Block {
    uint16_t d;
    uint8_t codes[14];
  };
  static_assert(sizeof(Block) == 16);

  static constexpr int kBlock = 32, kPieces = 1, kSubBlock = 32;
  static constexpr int kScaleBytes = 64, kPieceBytes = Pairs::kBytes;
  static constexpr int kUnitBytes = kScaleBytes + kPieceBytes;
  static constexpr bool kSigned = false, kMinimum = false;
  static constexpr int kMax = Q3H_K::kMax, kOffset = kPairZero;
  using Search = SymmetricBlocks<Points<kPairGrid, Pairs::kLevels, kPairZero>, 32, 60, 140, 20>;

  static void dequantize(const Block& b, float* out) {
    uint8_t q[32];
    Pairs::get<32>(b.codes, q);
    const float d = from_half(b.d);
    for (int j = 0; j < 32; ++j) out[j] = d * static_cast<float>(kPairGrid[q[j]] - kPairZero);
  }
  static Block assemble(const Fields& f) {
    Block b = {f.d, {}};
    Pairs::set<32>(b.codes, f.q);
    return b;
  }

  static void pack(const Block* b, int lane, uint8_t* unit) {
    uint8_t q[64];
    for (int i = 0; i < 2; ++i) {
      Pairs::get<32>(b[i].codes, q + 32 * i);
      store16(unit + 32 * i + 2 * lane, b[i].d);
    }
    Pairs::put(unit + kScaleBytes, lane, q);
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    uint8_t q[64];
    Pairs::take(unit + kScaleBytes, lane, q);
    for (int i = 0; i < 2; ++i) {
      Pairs::set<32>(b[i].codes, q + 32 * i);
      b[i].d = load16(unit + 32 * i + 2 * lane);
    }
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Pairs::load<S, Q>(piece, kPointTable, w);
  }
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F*) {
    const auto* d = reinterpret_cast<const uint16_t*>(unit);
    s[0] = S::load_f16(d);
    s[1] = S::load_f16(d + 16);
  }
};

}  // namespace pyflow::quant
