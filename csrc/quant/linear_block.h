// Blocks of N weights that lie on a line: a scale and a base, then the integers.
//
//   d f16 | m f16 | codes      value j = q * d + m, q of `Width` bits: 0 .. 2^Width - 1
//
//   The codes are planes of 8, 4, 2 or 1 bits of all weights, lowest bits first: 6 bits are a plane
//   of nibbles, then one of two bits. A plane of B bits has N * B / 8 bytes; weight j is in byte
//   j % (N * B / 8), ascending from the low end.
//
// Tile unit, 16 rows x 64 k:  d[64 / N][16] f16 | m[64 / N][16] f16 | the planes of planes.h
//
// "Inferflow: an Efficient and Highly Configurable Inference Engine for Large Language Models" (Shi
// et al., 2024), section 3, has blocks of these contents.
#pragma once

#include <type_traits>

#include "quant/scaled_block.h"

namespace pyflow::quant {

// B bits of each of n weights, and where in q they go.
template <int B>
inline void get_plane(const uint8_t* plane, int n, int shift, uint8_t* q) {
  const int bytes = n * B / 8;
  for (int part = 0; part < 8 / B; ++part, q += bytes)
    for (int j = 0; j < bytes; ++j)
      q[j] = static_cast<uint8_t>(q[j] | (plane[j] >> B * part & ((1 << B) - 1)) << shift);
}
template <int B>
inline void set_plane(uint8_t* plane, int n, int shift, const uint8_t* q) {
  const int bytes = n * B / 8;
  for (int part = 0; part < 8 / B; ++part, q += bytes)
    for (int j = 0; j < bytes; ++j)
      plane[j] = static_cast<uint8_t>(plane[j] | (q[j] >> shift & ((1 << B) - 1)) << B * part);
}

// Where a tile has its weights.
template <int Width>
struct LinearPlanes : Planes<std::conditional_t<Width >= 4, Nibbles, TwoBits<0>>,
                             std::conditional_t<Width % 2 == 0, TwoBits<4>, Bits<Width - 1>>> {};
template <>
struct LinearPlanes<2> : TwoBits<0> {};
template <>
struct LinearPlanes<4> : Nibbles {};
// A tile holds 8 bits as signed numbers, 128 less.
template <>
struct LinearPlanes<8> : Bytes {
  static void put(uint8_t* plane, int lane, const uint8_t* q) {
    uint8_t flipped[64];
    for (int j = 0; j < 64; ++j) flipped[j] = q[j] ^ 0x80;
    Bytes::put(plane, lane, flipped);
  }
  static void get(const uint8_t* plane, int lane, uint8_t* q) {
    Bytes::get(plane, lane, q);
    for (int j = 0; j < 64; ++j) q[j] ^= 0x80;
  }
};

// Where the file has them: the low plane, and the bits above it.
template <int Width, int N>
struct LinearCodes {
  static constexpr int kBytes = N * Width / 8;
  static constexpr int kLow = Width == 8 ? 8 : Width >= 4 ? 4 : 2, kHigh = Width - kLow;
  static constexpr int kLowBytes = N * kLow / 8;

  static void get(const uint8_t* codes, uint8_t* q) {
    for (int j = 0; j < N; ++j) q[j] = 0;
    get_plane<kLow>(codes, N, 0, q);
    if constexpr (kHigh != 0) get_plane<kHigh>(codes + kLowBytes, N, kLow, q);
  }
  static void set(uint8_t* codes, const uint8_t* q) {
    set_plane<kLow>(codes, N, 0, q);
    if constexpr (kHigh != 0) set_plane<kHigh>(codes + kLowBytes, N, kLow, q);
  }
};

template <int Width, int N>
struct LinearBlock
    : ScaledBlock<LinearBlock<Width, N>, LinearCodes<Width, N>, LinearPlanes<Width>, N, true> {
  static_assert((Width == 2 || Width == 3 || Width == 4 || Width == 5 || Width == 6 ||
                 Width == 8) &&
                (N == 32 || N == 64));
  static constexpr bool kSigned = Width == 8;
  static constexpr int kMax = (1 << Width) - 1, kOffset = Width == 8 ? -128 : 0;
  // Eight bits of activations lose more than eight of weights, and a quarter of what six do
  // (docs/quantization.md).
  static constexpr bool kFineInputs = Width >= 6;
  using Search = AffineBlocks<kMax, N>;

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    LinearPlanes<Width>::template load<S, Q>(piece, w);
    if constexpr (Width == 8)
      for (int i = 0; i < 4; ++i) w[i] = S::s8_prepare(w[i]);
  }
};

}  // namespace pyflow::quant
