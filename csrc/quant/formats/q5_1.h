// Q5_1: 32 weights in 24 bytes, 6 bits each.
//
//   d f16 | m f16 | qh[4] | qs[16]      value j = q * d + m, q as in Q5_0
//
// Tile unit, 16 rows x 64 k, 768 bytes:  d[2][16] f16 | m[2][16] f16 | Nibbles + Bits 640
#pragma once

#include "quant/encoding.h"
#include "quant/file_bits.h"
#include "quant/half.h"
#include "quant/planes.h"

namespace pyflow::quant {

struct Q5_1 {
  struct Block {
    uint16_t d, m;
    uint8_t qh[4], qs[16];
  };
  static_assert(sizeof(Block) == 24);
  using Weights = Planes<Nibbles, Bits<4>>;

  static constexpr int kBlock = 32, kPieces = 1, kSubBlock = 32;
  static constexpr int kScaleBytes = 128, kPieceBytes = Weights::kBytes;
  static constexpr int kUnitBytes = kScaleBytes + kPieceBytes;
  static constexpr bool kSigned = false, kMinimum = true;
  static constexpr int kMax = 31, kOffset = 0;
  using Search = AffineBlocks<31, 32>;

  static void dequantize(const Block& b, float* out) {
    uint8_t q[32];
    get_nibbles(b.qs, 16, q);
    get_fifth_bits(b.qh, q);
    const float d = from_half(b.d), m = from_half(b.m);
    for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(q[j]) * d + m;
  }
  static Block assemble(const Fields& f) {
    Block b = {f.d, f.m, {}, {}};
    set_nibbles(b.qs, 16, f.q);
    set_fifth_bits(b.qh, f.q);
    return b;
  }

  static void pack(const Block* b, int lane, uint8_t* unit) {
    uint8_t q[64];
    for (int i = 0; i < 2; ++i) {
      get_nibbles(b[i].qs, 16, q + 32 * i);
      get_fifth_bits(b[i].qh, q + 32 * i);
      store16(unit + 32 * i + 2 * lane, b[i].d);
      store16(unit + 64 + 32 * i + 2 * lane, b[i].m);
    }
    Weights::put(unit + kScaleBytes, lane, q);
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    uint8_t q[64] = {};
    Weights::get(unit + kScaleBytes, lane, q);
    for (int i = 0; i < 2; ++i) {
      b[i] = {};
      set_nibbles(b[i].qs, 16, q + 32 * i);
      set_fifth_bits(b[i].qh, q + 32 * i);
      b[i].d = load16(unit + 32 * i + 2 * lane);
      b[i].m = load16(unit + 64 + 32 * i + 2 * lane);
    }
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Weights::load<S, Q>(piece, w);
  }
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F* m) {
    const auto* d = reinterpret_cast<const uint16_t*>(unit);
    for (int i = 0; i < 2; ++i) {
      s[i] = S::load_f16(d + 16 * i);
      m[i] = S::load_f16(d + 32 + 16 * i);
    }
  }
};

}  // namespace pyflow::quant
