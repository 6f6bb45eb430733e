// Q6_K: 256 weights in 210 bytes, 6.5625 bits each; sixteen sub-blocks of 16.
//
//   ql[128] | qh[64] | scales[16] i8 | d f16
//
//   Two halves of 128 weights; in each, four runs of 32: low 4 bits from the low nibbles of
//   ql[0..31], of ql[32..63], then the high nibbles of both; high 2 bits from bits 0, 2, 4, 6 of
//   qh[0..31]. value = d * scale * (q - 32)
//
// Tile unit, 16 rows x 256 k, 3392 bytes:  d[16] f16 | 32 unused, 0.95 % more than the file |
//   scales[16][16] i8 | 4 x Nibbles + TwoBits 768
#pragma once

#include "quant/encoding.h"
#include "quant/file_bits.h"
#include "quant/half.h"
#include "quant/planes.h"

namespace pyflow::quant {

struct Q6_K {
  struct Block {
    uint8_t ql[128], qh[64], scales[16];
    uint16_t d;
  };
  static_assert(sizeof(Block) == 210);
  using Weights = Planes<Nibbles, TwoBits<4>>;

  static constexpr int kBlock = 256, kPieces = 4, kSubBlock = 16;
  static constexpr int kScaleBytes = 320, kPieceBytes = Weights::kBytes;
  static constexpr int kUnitBytes = kScaleBytes + 4 * kPieceBytes;
  static constexpr bool kSigned = false, kMinimum = false;
  static constexpr int kMax = 63, kOffset = 32;
  using Search = SymmetricSuperBlocks<Integers<-32, 31>, 16, 16, -128, 127, 70, 110, 28>;

  static void integers(const Block& b, uint8_t* q) {
    for (int half = 0; half < 2; ++half) get_nibbles(b.ql + 64 * half, 64, q + 128 * half);
    get_two_bits(b.qh, q, 4);
  }

  static void dequantize(const Block& b, float* out) {
    uint8_t q[256];
    integers(b, q);
    const float d = from_half(b.d);
    for (int j = 0; j < 16; ++j) {
      const float s = d * static_cast<float>(static_cast<int8_t>(b.scales[j]));
      for (int l = 16 * j; l < 16 * j + 16; ++l) out[l] = s * static_cast<float>(q[l] - 32);
    }
  }
  static Block assemble(const Fields& f) {
    Block b = {{}, {}, {}, f.d};
    for (int j = 0; j < 16; ++j) b.scales[j] = static_cast<uint8_t>(f.scales[j] - 128);
    for (int half = 0; half < 2; ++half) set_nibbles(b.ql + 64 * half, 64, f.q + 128 * half);
    set_two_bits(b.qh, f.q, 4);
    return b;
  }

  static void pack(const Block* b, int lane, uint8_t* unit) {
    uint8_t q[256];
    integers(*b, q);
    for (int g = 0; g < 4; ++g)
      Weights::put(unit + kScaleBytes + kPieceBytes * g, lane, q + 64 * g);
    store16(unit + 2 * lane, b->d);
    for (int j = 0; j < 16; ++j) unit[64 + 16 * j + lane] = b->scales[j];
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    uint8_t q[256] = {};
    *b = {};
    for (int g = 0; g < 4; ++g)
      Weights::get(unit + kScaleBytes + kPieceBytes * g, lane, q + 64 * g);
    for (int half = 0; half < 2; ++half) set_nibbles(b->ql + 64 * half, 64, q + 128 * half);
    set_two_bits(b->qh, q, 4);
    b->d = load16(unit + 2 * lane);
    for (int j = 0; j < 16; ++j) b->scales[j] = unit[64 + 16 * j + lane];
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Weights::load<S, Q>(piece, w);
  }
  // d * scale is exact in f32: 11 bits times 8.
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F*) {
    const typename S::F d = S::load_f16(reinterpret_cast<const uint16_t*>(unit));
    const auto* bytes = reinterpret_cast<const int8_t*>(unit + 64);
    for (int j = 0; j < 16; ++j) s[j] = S::mul(d, S::load_i8f(bytes + 16 * j));
  }
};

}  // namespace pyflow::quant
