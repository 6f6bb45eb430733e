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

#include "quant/encoding.h"
#include "quant/half.h"
#include "quant/planes.h"

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

// Scales and bases of the sub-blocks of 32 in a unit, from d[64 / N][16] | m[64 / N][16] as f16.
template <class S, int N>
inline void line_scales(const uint8_t* halves, typename S::F* s, typename S::F* m) {
  const auto* d = reinterpret_cast<const uint16_t*>(halves);
  for (int i = 0; i < 2; ++i) {
    s[i] = S::load_f16(d + 16 * (32 * i / N));
    m[i] = S::load_f16(d + 16 * (64 / N + 32 * i / N));
  }
}

// Where a tile has its weights.
template <int Width>
struct LinearPlanes : Planes<std::conditional_t<Width >= 4, Nibbles, TwoBits<0>>,
                             std::conditional_t<Width % 2 == 0, TwoBits<4>, Bits<Width - 1>>> {};
template <>
struct LinearPlanes<2> : TwoBits<0> {};
template <>
struct LinearPlanes<4> : Nibbles {};
template <>
struct LinearPlanes<8> : Bytes {};

template <int Width, int N>
struct LinearBlock {
  static_assert((Width == 2 || Width == 3 || Width == 4 || Width == 5 || Width == 6 ||
                 Width == 8) &&
                (N == 32 || N == 64));
  // The low plane, and the bits above it.
  static constexpr int kLow = Width == 8 ? 8 : Width >= 4 ? 4 : 2, kHigh = Width - kLow;
  static constexpr int kLowBytes = N * kLow / 8;

  using Weights = LinearPlanes<Width>;

  struct Block {
    uint16_t d, m;
    uint8_t codes[N * Width / 8];
  };
  static_assert(sizeof(Block) == 4 + N * Width / 8);

  static constexpr int kBlock = N, kPieces = 1, kSubBlock = 32;
  static constexpr int kScaleBytes = 64 * (64 / N), kPieceBytes = Weights::kBytes;
  static constexpr int kUnitBytes = kScaleBytes + kPieceBytes;
  // A tile holds 8 bits as signed numbers, 128 less.
  static constexpr bool kSigned = Width == 8, kMinimum = true;
  static constexpr int kMax = (1 << Width) - 1, kOffset = Width == 8 ? -128 : 0;
  // Eight bits of activations lose more than eight of weights, and a quarter of what six do
  // (docs/quantization.md).
  static constexpr bool kFineInputs = Width >= 6;
  using Search = AffineBlocks<kMax, N>;

  static void get(const Block& b, uint8_t* q) {
    for (int j = 0; j < N; ++j) q[j] = 0;
    get_plane<kLow>(b.codes, N, 0, q);
    if constexpr (kHigh != 0) get_plane<kHigh>(b.codes + kLowBytes, N, kLow, q);
  }
  static void set(const uint8_t* q, Block& b) {
    for (uint8_t& code : b.codes) code = 0;
    set_plane<kLow>(b.codes, N, 0, q);
    if constexpr (kHigh != 0) set_plane<kHigh>(b.codes + kLowBytes, N, kLow, q);
  }

  static void dequantize(const Block& b, float* out) {
    uint8_t q[N];
    get(b, q);
    const float d = from_half(b.d), m = from_half(b.m);
    for (int j = 0; j < N; ++j) out[j] = static_cast<float>(q[j]) * d + m;
  }
  static Block assemble(const Fields& f) {
    Block b = {f.d, f.m, {}};
    set(f.q, b);
    return b;
  }

  static void pack(const Block* b, int lane, uint8_t* unit) {
    uint8_t q[64];
    for (int i = 0; i < 64 / N; ++i) {
      get(b[i], q + N * i);
      store16(scale_at(unit, i, lane), b[i].d);
      store16(scale_at(unit, i + 64 / N, lane), b[i].m);
    }
    if constexpr (Width == 8)
      for (uint8_t& x : q) x ^= 0x80;
    Weights::put(unit + kScaleBytes, lane, q);
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    uint8_t q[64] = {};
    Weights::get(unit + kScaleBytes, lane, q);
    if constexpr (Width == 8)
      for (uint8_t& x : q) x ^= 0x80;
    for (int i = 0; i < 64 / N; ++i) {
      b[i].d = load16(scale_at(unit, i, lane));
      b[i].m = load16(scale_at(unit, i + 64 / N, lane));
      set(q + N * i, b[i]);
    }
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Weights::template load<S, Q>(piece, w);
    if constexpr (Width == 8)
      for (int i = 0; i < 4; ++i) w[i] = S::s8_prepare(w[i]);
  }
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F* m) {
    line_scales<S, N>(unit, s, m);
  }

 private:
  template <class Byte>
  static Byte* scale_at(Byte* unit, int i, int lane) {
    return unit + 32 * i + 2 * lane;
  }
};

}  // namespace pyflow::quant
