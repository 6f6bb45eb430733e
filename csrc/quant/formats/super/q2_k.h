// Q2_K: 256 weights in 84 bytes, 2.625 bits each; sixteen sub-blocks of 16.
//
//   scales[16] (low nibble scale, high nibble minimum) | qs[64] | d f16 | dmin f16
//
//   Two halves of 128 weights; in each, bits 0, 2, 4, 6 of 32 bytes are four runs of 32.
//   value = d * scale * q - dmin * minimum
//
// Tile unit, 16 rows x 256 k, 1344 bytes:  d[16] f16 | dmin[16] f16 | scales[16][16] |
//   4 x TwoBits 256
#pragma once

#include "quant/encoding.h"
#include "quant/file_bits.h"
#include "quant/half.h"
#include "quant/planes.h"

namespace pyflow::quant {

struct Q2_K {
  struct Block {
    uint8_t scales[16], qs[64];
    uint16_t d, dmin;
  };
  static_assert(sizeof(Block) == 84);
  using Weights = TwoBits<0>;

  static constexpr int kBlock = 256, kPieces = 4, kSubBlock = 16;
  static constexpr int kScaleBytes = 320, kPieceBytes = Weights::kBytes;
  static constexpr int kUnitBytes = kScaleBytes + 4 * kPieceBytes;
  static constexpr bool kSigned = false, kMinimum = true;
  static constexpr int kMax = 3, kOffset = 0;
  using Search = AffineSuperBlocks<3, 16, 16, 15>;

  static void dequantize(const Block& b, float* out) {
    uint8_t q[256] = {};
    get_two_bits(b.qs, q, 0);
    const float d = from_half(b.d), dmin = from_half(b.dmin);
    for (int j = 0; j < 16; ++j) {
      const float s = d * static_cast<float>(b.scales[j] & 15);
      const float m = dmin * static_cast<float>(b.scales[j] >> 4);
      for (int l = 16 * j; l < 16 * j + 16; ++l) out[l] = s * static_cast<float>(q[l]) - m;
    }
  }
  static Block assemble(const Fields& f) {
    Block b = {{}, {}, f.d, f.m};
    for (int j = 0; j < 16; ++j)
      b.scales[j] = static_cast<uint8_t>(f.scales[j] | f.minimums[j] << 4);
    set_two_bits(b.qs, f.q, 0);
    return b;
  }

  static void pack(const Block* b, int lane, uint8_t* unit) {
    uint8_t q[256] = {};
    get_two_bits(b->qs, q, 0);
    for (int g = 0; g < 4; ++g)
      Weights::put(unit + kScaleBytes + kPieceBytes * g, lane, q + 64 * g);
    store16(unit + 2 * lane, b->d);
    store16(unit + 32 + 2 * lane, b->dmin);
    for (int j = 0; j < 16; ++j) unit[64 + 16 * j + lane] = b->scales[j];
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    uint8_t q[256] = {};
    *b = {};
    for (int g = 0; g < 4; ++g)
      Weights::get(unit + kScaleBytes + kPieceBytes * g, lane, q + 64 * g);
    set_two_bits(b->qs, q, 0);
    b->d = load16(unit + 2 * lane);
    b->dmin = load16(unit + 32 + 2 * lane);
    for (int j = 0; j < 16; ++j) b->scales[j] = unit[64 + 16 * j + lane];
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Weights::load<S, Q>(piece, w);
  }
  // d * scale and -dmin * minimum: exact in f32, 11 bits times 4.
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F* m) {
    using F = typename S::F;
    using I = typename S::I;
    const auto* half = reinterpret_cast<const uint16_t*>(unit);
    const F d = S::load_f16(half), minus_dmin = S::sub(S::zero(), S::load_f16(half + 16));
    for (int j = 0; j < 16; ++j) {
      const I both = S::load_u8(unit + 64 + 16 * j);
      s[j] = S::mul(d, S::to_f(S::iand(both, S::iset1(15))));
      m[j] = S::mul(minus_dmin, S::to_f(S::template shr<4>(both)));
    }
  }
};

}  // namespace pyflow::quant
