// Q4_0: 32 weights in 18 bytes, 4.5 bits each.
//
//   d f16 | qs[16]      value j      = (low nibble of qs[j]  - 8) * d     j < 16
//                       value j + 16 = (high nibble of qs[j] - 8) * d
//
// Tile unit, 16 rows x 64 k, 576 bytes:  d[2][16] f16 | Nibbles 512
#pragma once

#include "quant/encoding.h"
#include "quant/file_bits.h"
#include "quant/half.h"
#include "quant/planes.h"

namespace pyflow::quant {

struct Q4_0 {
  struct Block {
    uint16_t d;
    uint8_t qs[16];
  };
  static_assert(sizeof(Block) == 18);

  static constexpr int kBlock = 32, kPieces = 1, kSubBlock = 32;
  static constexpr int kScaleBytes = 64, kPieceBytes = Nibbles::kBytes;
  static constexpr int kUnitBytes = kScaleBytes + kPieceBytes;
  static constexpr bool kSigned = false, kMinimum = false;
  static constexpr int kMax = 15, kOffset = 8;
  using Search = SymmetricBlocks<Integers<-8, 7>, 32, 50, 140, 28>;

  static void dequantize(const Block& b, float* out) {
    uint8_t q[32];
    get_nibbles(b.qs, 16, q);
    const float d = from_half(b.d);
    for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(q[j] - 8) * d;
  }
  static Block assemble(const Fields& f) {
    Block b = {f.d, {}};
    set_nibbles(b.qs, 16, f.q);
    return b;
  }

  static void pack(const Block* b, int lane, uint8_t* unit) {
    uint8_t q[64];
    for (int i = 0; i < 2; ++i) {
      get_nibbles(b[i].qs, 16, q + 32 * i);
      store16(unit + 32 * i + 2 * lane, b[i].d);
    }
    Nibbles::put(unit + kScaleBytes, lane, q);
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    uint8_t q[64] = {};
    Nibbles::get(unit + kScaleBytes, lane, q);
    for (int i = 0; i < 2; ++i) {
      set_nibbles(b[i].qs, 16, q + 32 * i);
      b[i].d = load16(unit + 32 * i + 2 * lane);
    }
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Nibbles::load<S, Q>(piece, w);
  }
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F*) {
    const auto* d = reinterpret_cast<const uint16_t*>(unit);
    s[0] = S::load_f16(d);
    s[1] = S::load_f16(d + 16);
  }
};

}  // namespace pyflow::quant
