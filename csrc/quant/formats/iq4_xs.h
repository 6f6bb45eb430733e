// IQ4_XS: 256 weights in 136 bytes, 4.25 bits each; eight sub-blocks of 32 on IQ4_NL's grid.
//
//   d f16 | scales_h u16 | scales_l[4] | qs[128]
//
//   scale j: low 4 bits in nibble j of scales_l, high 2 bits in bits 2j of scales_h.
//   Sixteen bytes of qs per sub-block, nibbles ordered as in Q4_0.
//   value = d * (scale - 32) * kIq4Grid[nibble]
//
// Tile unit, 16 rows x 256 k, 2176 bytes:  4 x Nibbles 512 | scales_l, a dword per row | d[16] f16
// |
//   low bytes of scales_h [16] | high bytes [16]
#pragma once

#include "quant/formats/iq4_nl.h"
#include "quant/search/symmetric_super.h"

namespace pyflow::quant {

struct IQ4_XS {
  struct Block {
    uint16_t d, scales_h;
    uint8_t scales_l[4], qs[128];
  };
  static_assert(sizeof(Block) == 136);

  static constexpr int kBlock = 256, kPieces = 4, kSubBlock = 32;
  static constexpr int kPieceBytes = Nibbles::kBytes, kUnitBytes = 4 * kPieceBytes + 128;
  static constexpr bool kSigned = true, kMinimum = false;
  using Search = SymmetricSuperBlocks<Iq4Points, 32, 8, -32, 31, 60, 140, 20>;

  static int scale(const Block& b, int j) {
    return ((b.scales_l[j / 2] >> j % 2 * 4 & 15) | (b.scales_h >> 2 * j & 3) << 4) - 32;
  }

  static void dequantize(const Block& b, float* out) {
    const float d = from_half(b.d);
    for (int j = 0; j < 8; ++j) {
      uint8_t q[32];
      get_nibbles(b.qs + 16 * j, 16, q);
      const float s = d * static_cast<float>(scale(b, j));
      for (int l = 0; l < 32; ++l) out[32 * j + l] = s * static_cast<float>(kIq4Grid[q[l]]);
    }
  }
  static Block assemble(const Fields& f) {
    Block b = {f.d, 0, {}, {}};
    for (int j = 0; j < 8; ++j) {
      const uint8_t low = f.scales[j] & 15, high = f.scales[j] >> 4;
      b.scales_l[j / 2] = static_cast<uint8_t>(b.scales_l[j / 2] | low << j % 2 * 4);
      b.scales_h = static_cast<uint16_t>(b.scales_h | high << 2 * j);
      set_nibbles(b.qs + 16 * j, 16, f.q + 32 * j);
    }
    return b;
  }

  static void pack(const Block* b, int lane, uint8_t* unit) {
    uint8_t q[256];
    for (int j = 0; j < 8; ++j) get_nibbles(b->qs + 16 * j, 16, q + 32 * j);
    for (int g = 0; g < 4; ++g) Nibbles::put(unit + kPieceBytes * g, lane, q + 64 * g);
    uint8_t* scales = unit + 4 * kPieceBytes;
    store32(scales + 4 * lane, load32(b->scales_l));
    store16(scales + 64 + 2 * lane, b->d);
    scales[96 + lane] = static_cast<uint8_t>(b->scales_h);
    scales[112 + lane] = static_cast<uint8_t>(b->scales_h >> 8);
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    uint8_t q[256] = {};
    for (int g = 0; g < 4; ++g) Nibbles::get(unit + kPieceBytes * g, lane, q + 64 * g);
    for (int j = 0; j < 8; ++j) set_nibbles(b->qs + 16 * j, 16, q + 32 * j);
    const uint8_t* scales = unit + 4 * kPieceBytes;
    store32(b->scales_l, load32(scales + 4 * lane));
    b->d = load16(scales + 64 + 2 * lane);
    b->scales_h = static_cast<uint16_t>(scales[96 + lane] | scales[112 + lane] << 8);
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Nibbles::load<S, Q>(piece, w);
    for (int i = 0; i < 4; ++i) w[i] = S::s8_prepare(S::lut16(kIq4Grid, w[i]));
  }
  // d * (scale - 32) is exact in f32: 11 bits times 6.
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F*) {
    const uint8_t* p = unit + 4 * kPieceBytes;
    const auto low = S::load_i32(reinterpret_cast<const int32_t*>(p));
    const auto d = S::load_f16(reinterpret_cast<const uint16_t*>(p + 64));
    const auto high03 = S::load_u8(p + 96), high47 = S::load_u8(p + 112);
    s[0] = sub_scale<S, 0>(low, high03, d);
    s[1] = sub_scale<S, 1>(low, high03, d);
    s[2] = sub_scale<S, 2>(low, high03, d);
    s[3] = sub_scale<S, 3>(low, high03, d);
    s[4] = sub_scale<S, 4>(low, high47, d);
    s[5] = sub_scale<S, 5>(low, high47, d);
    s[6] = sub_scale<S, 6>(low, high47, d);
    s[7] = sub_scale<S, 7>(low, high47, d);
  }

 private:
  template <class S, int J>
  static inline typename S::F sub_scale(typename S::I low, typename S::I high, typename S::F d) {
    const auto four = S::iand(S::template shr<4 * J>(low), S::iset1(15));
    const auto two = S::iand(S::template shr<2 * (J % 4)>(high), S::iset1(3));
    const auto scale = S::ior(four, S::template shl<4>(two));
    return S::mul(d, S::to_f(S::isub(scale, S::iset1(32))));
  }
};

}  // namespace pyflow::quant
