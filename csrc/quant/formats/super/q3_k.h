// Q3_K: 256 weights in 110 bytes, 3.4375 bits each; sixteen sub-blocks of 16.
//
//   hmask[32] | qs[64] | scales[12] | d f16
//
//   q = two bits of qs, ordered as in Q2_K, + 4 * (bit `run` of hmask[l]) for weight l of the eight
//   runs of 32. value = d * (scale - 32) * (q - 4)
//   scales[j % 8] holds the low 4 bits of scale j (low nibble j < 8, high nibble j >= 8),
//   scales[8 + j % 4] its high 2 bits, at bit 2 * (j / 4).
//
// Tile unit, 16 rows x 256 k, 1792 bytes:  d[16] f16 | 32 unused, 1.8 % more than the file |
//   three lines of dwords, the 12 scale bytes of each row | 4 x TwoBits + Bits 384
#pragma once

#include "quant/encoding.h"
#include "quant/file_bits.h"
#include "quant/half.h"
#include "quant/planes.h"

namespace pyflow::quant {

struct Q3_K {
  struct Block {
    uint8_t hmask[32], qs[64], scales[12];
    uint16_t d;
  };
  static_assert(sizeof(Block) == 110);
  using Weights = Planes<TwoBits<0>, Bits<2>>;

  static constexpr int kBlock = 256, kPieces = 4, kSubBlock = 16;
  static constexpr int kScaleBytes = 256, kPieceBytes = Weights::kBytes;
  static constexpr int kUnitBytes = kScaleBytes + 4 * kPieceBytes;
  static constexpr bool kSigned = false, kMinimum = false;
  static constexpr int kMax = 7, kOffset = 4;
  using Search = SymmetricSuperBlocks<Integers<-4, 3>, 16, 16, -32, 31, 50, 150, 24>;

  static int scale(const uint8_t* b, int j) {
    return ((b[j % 8] >> j / 8 * 4 & 15) | (b[8 + j % 4] >> j / 4 * 2 & 3) << 4) - 32;
  }

  static void dequantize(const Block& b, float* out) {
    uint8_t q[256] = {};
    get_two_bits(b.qs, q, 0);
    get_bits(b.hmask, q, 2);
    const float d = from_half(b.d);
    for (int j = 0; j < 16; ++j) {
      const float s = d * static_cast<float>(scale(b.scales, j));
      for (int l = 16 * j; l < 16 * j + 16; ++l) out[l] = s * static_cast<float>(q[l] - 4);
    }
  }
  static Block assemble(const Fields& f) {
    Block b = {{}, {}, {}, f.d};
    for (int j = 0; j < 16; ++j) {
      uint8_t &low = b.scales[j % 8], &high = b.scales[8 + j % 4];
      low = static_cast<uint8_t>(low | (f.scales[j] & 15) << j / 8 * 4);
      high = static_cast<uint8_t>(high | f.scales[j] >> 4 << j / 4 * 2);
    }
    set_two_bits(b.qs, f.q, 0);
    set_bits(b.hmask, f.q, 2);
    return b;
  }

  static void pack(const Block* b, int lane, uint8_t* unit) {
    uint8_t q[256] = {};
    get_two_bits(b->qs, q, 0);
    get_bits(b->hmask, q, 2);
    for (int g = 0; g < 4; ++g)
      Weights::put(unit + kScaleBytes + kPieceBytes * g, lane, q + 64 * g);
    store16(unit + 2 * lane, b->d);
    for (int i = 0; i < 3; ++i) store32(quad(unit, 1 + i, lane), load32(b->scales + 4 * i));
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    uint8_t q[256] = {};
    *b = {};
    for (int g = 0; g < 4; ++g)
      Weights::get(unit + kScaleBytes + kPieceBytes * g, lane, q + 64 * g);
    set_two_bits(b->qs, q, 0);
    set_bits(b->hmask, q, 2);
    b->d = load16(unit + 2 * lane);
    for (int i = 0; i < 3; ++i) store32(b->scales + 4 * i, load32(quad(unit, 1 + i, lane)));
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Weights::load<S, Q>(piece, w);
  }
  // d * (scale - 32) is exact in f32: 11 bits times 6.
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F*) {
    using I = typename S::I;
    const auto* dwords = reinterpret_cast<const int32_t*>(unit + 64);
    const I b0 = S::load_i32(dwords), b4 = S::load_i32(dwords + 16), b8 = S::load_i32(dwords + 32);
    const I four = S::iset1(0x0f0f0f0f), two = S::iset1(0x30303030);
    const typename S::F d = S::load_f16(reinterpret_cast<const uint16_t*>(unit));
    const I bytes[4] = {
        S::ior(S::iand(b0, four), S::iand(S::template shl<4>(b8), two)),
        S::ior(S::iand(b4, four), S::iand(S::template shl<2>(b8), two)),
        S::ior(S::iand(S::template shr<4>(b0), four), S::iand(b8, two)),
        S::ior(S::iand(S::template shr<4>(b4), four), S::iand(S::template shr<2>(b8), two)),
    };
    const I byte = S::iset1(255), bias = S::iset1(32);
    for (int i = 0; i < 4; ++i) {
      const I sub[4] = {
          S::iand(bytes[i], byte),
          S::iand(S::template shr<8>(bytes[i]), byte),
          S::iand(S::template shr<16>(bytes[i]), byte),
          S::template shr<24>(bytes[i]),
      };
      for (int j = 0; j < 4; ++j) s[4 * i + j] = S::mul(d, S::to_f(S::isub(sub[j], bias)));
    }
  }
};

}  // namespace pyflow::quant
