// Q8_0: 32 weights in 34 bytes, 8.5 bits each.
//
//   d f16 | qs[32] i8      value j = qs[j] * d
//
// Tile unit, 16 rows x 64 k, 1088 bytes:  d[2][16] f16 | Bytes 1024
#pragma once

#include "quant/encoding.h"
#include "quant/half.h"
#include "quant/planes.h"

namespace pyflow::quant {

struct Q8_0 {
  struct Block {
    uint16_t d;
    uint8_t qs[32];
  };
  static_assert(sizeof(Block) == 34);

  static constexpr int kBlock = 32, kPieces = 1, kSubBlock = 32;
  static constexpr int kScaleBytes = 64, kPieceBytes = Bytes::kBytes;
  static constexpr int kUnitBytes = kScaleBytes + kPieceBytes;
  static constexpr bool kSigned = true, kMinimum = false;
  static constexpr int kMax = 128;
  using Search = SymmetricBlocks<Integers<-127, 127>, 32, 93, 101, 20>;

  static void dequantize(const Block& b, float* out) {
    const float d = from_half(b.d);
    for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(static_cast<int8_t>(b.qs[j])) * d;
  }
  static Block assemble(const Fields& f) {
    Block b = {f.d, {}};
    for (int j = 0; j < 32; ++j) b.qs[j] = static_cast<uint8_t>(f.q[j] - 127);
    return b;
  }

  static void pack(const Block* b, int lane, uint8_t* unit) {
    uint8_t q[64];
    for (int i = 0; i < 2; ++i) {
      __builtin_memcpy(q + 32 * i, b[i].qs, 32);
      store16(unit + 32 * i + 2 * lane, b[i].d);
    }
    Bytes::put(unit + kScaleBytes, lane, q);
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    uint8_t q[64] = {};
    Bytes::get(unit + kScaleBytes, lane, q);
    for (int i = 0; i < 2; ++i) {
      __builtin_memcpy(b[i].qs, q + 32 * i, 32);
      b[i].d = load16(unit + 32 * i + 2 * lane);
    }
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Bytes::load<S, Q>(piece, w);
    for (int i = 0; i < 4; ++i) w[i] = S::s8_prepare(w[i]);
  }
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F*) {
    const auto* d = reinterpret_cast<const uint16_t*>(unit);
    s[0] = S::load_f16(d);
    s[1] = S::load_f16(d + 16);
  }
};

}  // namespace pyflow::quant
