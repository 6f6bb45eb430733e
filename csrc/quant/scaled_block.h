// Blocks of N weights (32 or 64) with one scale, and a minimum or none.
//
//   d f16 | m f16 if there is a minimum | codes      value j = point(q_j) * d [+ m]
//
// Tile unit, 16 rows x 64 k:  d[64 / N][16] f16 | m[64 / N][16] f16 likewise | the planes
//
// A format derives from ScaledBlock and names
//   Codes   where the file has the integers: kBytes, get(codes, q), set(codes, q) for N of them;
//           set() expects zeroed bytes
//   Planes  where a tile has them (planes.h)
// It hides point() and code() if a code is not the integer that it stands for.
#pragma once

#include <type_traits>

#include "quant/encoding.h"
#include "quant/file_bits.h"
#include "quant/half.h"
#include "quant/planes.h"

namespace pyflow::quant {

template <class Format, class Codes, class Planes, int N, bool Minimum>
struct ScaledBlock {
  struct Scaled {
    uint16_t d;
    uint8_t codes[Codes::kBytes];
  };
  struct ScaledFromMinimum {
    uint16_t d, m;
    uint8_t codes[Codes::kBytes];
  };
  using Block = std::conditional_t<Minimum, ScaledFromMinimum, Scaled>;
  static_assert(sizeof(Block) == (Minimum ? 4 : 2) + Codes::kBytes);

  static constexpr int kBlock = N, kPieces = 1, kSubBlock = 32;
  static constexpr int kScaleBytes = 64 / N * (Minimum ? 64 : 32), kPieceBytes = Planes::kBytes;
  static constexpr int kUnitBytes = kScaleBytes + kPieceBytes;
  static constexpr bool kSigned = false, kMinimum = Minimum;

  // What a code stands for, and the code of a search's level.
  static constexpr int point(uint8_t q) { return q; }
  static constexpr uint8_t code(uint8_t level) { return level; }

  static void dequantize(const Block& b, float* out) {
    uint8_t q[N];
    Codes::get(b.codes, q);
    const float d = from_half(b.d);
    for (int j = 0; j < N; ++j) out[j] = static_cast<float>(Format::point(q[j])) * d;
    if constexpr (Minimum) {
      const float m = from_half(b.m);
      for (int j = 0; j < N; ++j) out[j] += m;
    }
  }
  static Block assemble(const Fields& f) {
    Block b = {};
    b.d = f.d;
    if constexpr (Minimum) b.m = f.m;
    uint8_t q[N];
    for (int j = 0; j < N; ++j) q[j] = Format::code(f.q[j]);
    Codes::set(b.codes, q);
    return b;
  }

  static void pack(const Block* b, int lane, uint8_t* unit) {
    uint8_t q[64];
    for (int i = 0; i < 64 / N; ++i) {
      Codes::get(b[i].codes, q + N * i);
      store16(scale_at(unit, i, lane), b[i].d);
      if constexpr (Minimum) store16(scale_at(unit, i + 64 / N, lane), b[i].m);
    }
    Planes::put(unit + kScaleBytes, lane, q);
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    uint8_t q[64] = {};
    Planes::get(unit + kScaleBytes, lane, q);
    for (int i = 0; i < 64 / N; ++i) {
      b[i] = {};
      b[i].d = load16(scale_at(unit, i, lane));
      if constexpr (Minimum) b[i].m = load16(scale_at(unit, i + 64 / N, lane));
      Codes::set(b[i].codes, q + N * i);
    }
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Planes::template load<S, Q>(piece, w);
  }
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s,
                            [[maybe_unused]] typename S::F* m) {
    const auto* d = reinterpret_cast<const uint16_t*>(unit);
    for (int i = 0; i < 2; ++i) {
      s[i] = S::load_f16(d + 16 * (32 * i / N));
      if constexpr (Minimum) m[i] = S::load_f16(d + 16 * (64 / N + 32 * i / N));
    }
  }

 private:
  template <class Byte>
  static Byte* scale_at(Byte* unit, int i, int lane) {
    return unit + 32 * i + 2 * lane;
  }
};

// 32 weights: the low nibbles of the bytes are 0 .. 15, the high ones 16 .. 31.
struct NibbleCodes {
  static constexpr int kBytes = 16;
  static void get(const uint8_t* codes, uint8_t* q) { get_nibbles(codes, 16, q); }
  static void set(uint8_t* codes, const uint8_t* q) { set_nibbles(codes, 16, q); }
};
// 32 weights: four bytes of fifth bits, then the nibbles.
struct FiveBitCodes {
  static constexpr int kBytes = 20;
  static void get(const uint8_t* codes, uint8_t* q) {
    get_nibbles(codes + 4, 16, q);
    get_fifth_bits(codes, q);
  }
  static void set(uint8_t* codes, const uint8_t* q) {
    set_nibbles(codes + 4, 16, q);
    set_fifth_bits(codes, q);
  }
};

}  // namespace pyflow::quant
