// Pairs of weights in seven bits: 3.5 bits each, for eleven levels, 11 * 11 = 121 < 128.
//
//   Of 64 weights, p and p + 32 are a pair, v = q_p + 11 * q_(p+32): 32 times 7 bits in 28 bytes.
//   Byte t has v_t in its low seven bits; the top bits of bytes i, i + 4, i + 8 .. i + 24 are the
//   seven of v_(28+i), from the low end.
//
// A piece of a tile, 16 rows x 64 k, is seven lines: line i has bytes 4i .. 4i+3 of each row as its
// quad (planes.h), so v of quad i, and bit i of the quad v_28 .. v_31. The low parts are k 0..31
// and the high parts k 32..63, each in order.
//
// The codes 121 .. 127, which no encoder writes, are pairs of 0 .. 6 and 11.
//
// "Inferflow: an Efficient and Highly Configurable Inference Engine for Large Language Models" (Shi
// et al., 2024), section 3, has pairs of neighbours in 7 bits; these are 32 apart.
#pragma once

#include "quant/planes.h"

namespace pyflow::quant {

// Multiples of 11. Internal linkage: kernels take its address.
alignas(16) static constexpr int8_t kElevens[16] = {0,  11, 22, 33, 44,  55,
                                                    66, 77, 88, 99, 110, 121};

struct Pairs {
  static constexpr int kLevels = 11, kLines = 7;
  static constexpr int kBytes = 64 * kLines;    // of a piece
  static constexpr int kRowBytes = 4 * kLines;  // of a row's 64 weights
  static constexpr int kMax = kLevels;          // of the codes that no encoder writes

  static void get(const uint8_t* codes, uint8_t* q) {
    for (int p = 0; p < 32; ++p) {
      int v = 0;
      if (p < 28) {
        v = codes[p] & 127;
      } else {
        for (int i = 0; i < kLines; ++i) v |= (codes[4 * i + p - 28] >> 7) << i;
      }
      q[p] = static_cast<uint8_t>(v % kLevels);
      q[p + 32] = static_cast<uint8_t>(v / kLevels);
    }
  }
  // Onto zeros.
  static void set(uint8_t* codes, const uint8_t* q) {
    for (int p = 0; p < 32; ++p) {
      const int v = q[p] + kLevels * q[p + 32];
      if (p < 28) {
        codes[p] = static_cast<uint8_t>(codes[p] | v);
      } else {
        for (int i = 0; i < kLines; ++i) {
          uint8_t& code = codes[4 * i + p - 28];
          code = static_cast<uint8_t>(code | (v >> i & 1) << 7);
        }
      }
    }
  }

  // A row's codes into a piece and out of it.
  static void put(uint8_t* piece, int lane, const uint8_t* codes) {
    for (int i = 0; i < kLines; ++i) store32(quad(piece, i, lane), load32(codes + 4 * i));
  }
  static void take(const uint8_t* piece, int lane, uint8_t* codes) {
    for (int i = 0; i < kLines; ++i) store32(codes + 4 * i, load32(quad(piece, i, lane)));
  }

  // Quarters Q and Q + 2, Q below 2.
  template <class S, int Q>
  static inline void load(const uint8_t* piece, typename S::B (&low)[4], typename S::B (&high)[4]) {
    codes<S, 4 * Q + 0>(piece, low[0]);
    codes<S, 4 * Q + 1>(piece, low[1]);
    codes<S, 4 * Q + 2>(piece, low[2]);
    codes<S, 4 * Q + 3>(piece, low[3]);
    for (int i = 0; i < 4; ++i) {
      high[i] = S::bdiv11(low[i]);
      low[i] = S::bsub(low[i], S::lut16(kElevens, high[i]));
    }
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
