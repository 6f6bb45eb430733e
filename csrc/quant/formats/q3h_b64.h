// Q3H_B64: 64 weights in 32 bytes, 4 bits each, of which 3.5 are the weight's own.
//
//   d f16 | m f16 | codes[28]      value j = q * d + m, q from 0 to 10
//
//   Weights p and p + 32 are a pair, v = q_p + 11 * q_(p+32) < 121: 32 times 7 bits. Byte t of the
//   codes is v_t in its low seven bits; the top bits of bytes i, i + 4, i + 8 .. i + 24 are the
//   seven of v_(28+i), from the low end.
//
// Tile unit, 16 rows x 64 k, 512 bytes:  7 lines of codes | d[16] f16 | m[16] f16
//
//   Line i has bytes 4i .. 4i+3 of a row's codes as its quad: v of quad i (planes.h), and bit i of
//   the quad v_28 .. v_31.
//
// "Inferflow: an Efficient and Highly Configurable Inference Engine for Large Language Models" (Shi
// et al., 2024), section 3, has pairs of neighbours in 7 bits; these are 32 apart, so that the low
// parts of a unit are k 0..31 and the high parts k 32..63, each in order.
#pragma once

#include "quant/half.h"
#include "quant/linear_block.h"
#include "quant/planes.h"
#include "quant/search/affine.h"

namespace pyflow::quant {

struct Q3H_B64 {
  struct Block {
    uint16_t d, m;
    uint8_t codes[28];
  };
  static_assert(sizeof(Block) == 32);

  static constexpr int kBlock = 64, kPieces = 1, kSubBlock = 32;
  static constexpr int kLines = 7;
  static constexpr int kPieceBytes = 64 * kLines, kUnitBytes = kPieceBytes + 64;
  static constexpr bool kSigned = false, kMinimum = true;
  // The codes 121 .. 127, which no encoder writes, are pairs of 0 .. 6 and 11.
  static constexpr int kMax = 11, kOffset = 0;
  using Search = AffineBlocks<10, 64>;

  static void dequantize(const Block& b, float* out) {
    const float d = from_half(b.d), m = from_half(b.m);
    for (int p = 0; p < 32; ++p) {
      int v = 0;
      if (p < 28) {
        v = b.codes[p] & 127;
      } else {
        for (int i = 0; i < kLines; ++i) v |= (b.codes[4 * i + p - 28] >> 7) << i;
      }
      out[p] = static_cast<float>(v % 11) * d + m;
      out[p + 32] = static_cast<float>(v / 11) * d + m;
    }
  }
  static Block assemble(const Fields& f) {
    Block b = {f.d, f.m, {}};
    for (int p = 0; p < 32; ++p) {
      const int v = f.q[p] + 11 * f.q[p + 32];
      if (p < 28) {
        b.codes[p] = static_cast<uint8_t>(b.codes[p] | v);
      } else {
        for (int i = 0; i < kLines; ++i) {
          uint8_t& code = b.codes[4 * i + p - 28];
          code = static_cast<uint8_t>(code | (v >> i & 1) << 7);
        }
      }
    }
    return b;
  }

  static void pack(const Block* b, int lane, uint8_t* unit) {
    for (int i = 0; i < kLines; ++i) store32(quad(unit, i, lane), load32(b->codes + 4 * i));
    store16(unit + kPieceBytes + 2 * lane, b->d);
    store16(unit + kPieceBytes + 32 + 2 * lane, b->m);
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    for (int i = 0; i < kLines; ++i) store32(b->codes + 4 * i, load32(quad(unit, i, lane)));
    b->d = load16(unit + kPieceBytes + 2 * lane);
    b->m = load16(unit + kPieceBytes + 32 + 2 * lane);
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    constexpr int kFirst = Q % 2 * 4;
    codes<S, kFirst + 0>(piece, w[0]);
    codes<S, kFirst + 1>(piece, w[1]);
    codes<S, kFirst + 2>(piece, w[2]);
    codes<S, kFirst + 3>(piece, w[3]);
    for (int i = 0; i < 4; ++i) {
      const typename S::B high = S::bdiv11(w[i]);
      w[i] = Q < 2 ? S::bsub(w[i], S::template bmul<11>(high)) : high;
    }
  }
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F* m) {
    line_scales<S, 64>(unit + kPieceBytes, s, m);
  }

 private:
  // v of quad I.
  template <class S, int I>
  static inline void codes(const uint8_t* piece, typename S::B& v) {
    if constexpr (I < kLines) {
      v = S::band(S::bload(piece + 64 * I), S::bset1(0x7f));
    } else {
      v = S::bset1(0);
      top_bit<S, 0>(piece, v);
      top_bit<S, 1>(piece, v);
      top_bit<S, 2>(piece, v);
      top_bit<S, 3>(piece, v);
      top_bit<S, 4>(piece, v);
      top_bit<S, 5>(piece, v);
      top_bit<S, 6>(piece, v);
    }
  }
  template <class S, int I>
  static inline void top_bit(const uint8_t* piece, typename S::B& v) {
    v = S::bmerge(bmove<S, 7, I>(S::bload(piece + 64 * I)), S::bset1(1 << I), v);
  }
};

}  // namespace pyflow::quant
