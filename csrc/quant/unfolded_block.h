// Super-blocks of 256 weights whose file says several weights by one number. A tile has the code of
// each weight by itself, so that kernels need no tables of points; it is larger than the file.
//
//   value j = scale of the sub-block * (point(code j) - kOffset)
//
// Tile unit, 16 rows x 256 k:  Scales | 4 x the planes
//
// A format derives from UnfoldedBlock and has
//   Block, fields(block), assemble(fields)   what is in the file: d, scales and codes
//   kMax, kOffset, point(code)               of codes that are no integers, also points(lanes)
#pragma once

#include "quant/encoding.h"
#include "quant/half.h"
#include "quant/planes.h"

namespace pyflow::quant {

// d, an f16, for all weights. In a tile:  d[16] | 32 unused
struct OneScale {
  static constexpr int kTileBytes = 64;

  static float value(const Fields& f, int) { return from_half(f.d); }
  static void put(uint8_t* p, int lane, const Fields& f) { store16(p + 2 * lane, f.d); }
  static void get(const uint8_t* p, int lane, Fields& f) { f.d = load16(p + 2 * lane); }

  template <class S>
  static inline void load(const uint8_t* p, typename S::F* s) {
    s[0] = S::load_f16(reinterpret_cast<const uint16_t*>(p));
    for (int j = 1; j < 8; ++j) s[j] = s[0];
  }
};

// d * (2 * scale + 1) / 2^Shift: N scales of four bits, 8 or 16. In a tile:  a line of dwords for
// each eight scales, byte j scale j | scale j + 4 << 4 | d[16] f16 | 32 unused
template <int N, int Shift>
struct OddScales {
  static constexpr int kLines = N / 8, kTileBytes = 64 * (kLines + 1);
  static constexpr float kUnit = 1.0f / (1 << Shift);

  static float value(const Fields& f, int j) {
    return from_half(f.d) * kUnit * static_cast<float>(2 * f.scales[j] + 1);
  }
  static void put(uint8_t* p, int lane, const Fields& f) {
    for (int j = 0; j < N; ++j) {
      uint8_t& b = quad(p, j / 8, lane)[j % 4];
      b = static_cast<uint8_t>(b | f.scales[j] << j / 4 % 2 * 4);
    }
    store16(p + 64 * kLines + 2 * lane, f.d);
  }
  static void get(const uint8_t* p, int lane, Fields& f) {
    for (int j = 0; j < N; ++j) f.scales[j] = quad(p, j / 8, lane)[j % 4] >> j / 4 % 2 * 4 & 15;
    f.d = load16(p + 64 * kLines + 2 * lane);
  }

  // Exact in f32: 11 bits times 5.
  template <class S>
  static inline void load(const uint8_t* p, typename S::F* s) {
    const typename S::F d = unit<S>(p);
    for (int i = 0; i < kLines; ++i) {
      const typename S::I both = words<S>(p, i);
      odd<S>(both, 0x0f0f0f0f, d, s + 8 * i);
      odd<S>(S::template shr<4>(both), 0x0f0f0f0f, d, s + 8 * i + 4);
    }
  }
  template <class S>
  static inline typename S::F unit(const uint8_t* p) {
    const auto* d = reinterpret_cast<const uint16_t*>(p + 64 * kLines);
    return S::mul(S::load_f16(d), S::set1(kUnit));
  }
  template <class S>
  static inline typename S::I words(const uint8_t* p, int line) {
    return S::load_i32(reinterpret_cast<const int32_t*>(p) + 16 * line);
  }
  // d * (2 * b + 1) for the bits `mask` of the four bytes, at most 127.
  template <class S>
  static inline void odd(typename S::I bytes, int32_t mask, typename S::F d, typename S::F* s) {
    const typename S::I twice = S::template shl<1>(S::iand(bytes, S::iset1(mask)));
    scaled_bytes<S>(S::ior(twice, S::iset1(0x01010101)), d, s);
  }
};

template <class Format, class Planes, class Scales, int SubBlock>
struct UnfoldedBlock {
  static constexpr int kBlock = 256, kPieces = 4, kSubBlock = SubBlock;
  static constexpr int kScaleBytes = Scales::kTileBytes, kPieceBytes = Planes::kBytes;
  static constexpr int kUnitBytes = kScaleBytes + 4 * kPieceBytes;
  static constexpr bool kSigned = false, kMinimum = false;

  static constexpr int point(uint8_t code) { return code; }
  template <class S>
  static inline typename S::B points(typename S::B codes) {
    return codes;
  }

  template <class Block>
  static void dequantize(const Block& b, float* out) {
    const Fields f = Format::fields(b);
    for (int l = 0; l < 256; ++l)
      out[l] = Scales::value(f, l / SubBlock) *
               static_cast<float>(Format::point(f.q[l]) - Format::kOffset);
  }

  template <class Block>
  static void pack(const Block* b, int lane, uint8_t* unit) {
    const Fields f = Format::fields(*b);
    Scales::put(unit, lane, f);
    for (int g = 0; g < 4; ++g)
      Planes::put(unit + kScaleBytes + kPieceBytes * g, lane, f.q + 64 * g);
  }
  template <class Block>
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    Fields f;
    Scales::get(unit, lane, f);
    for (int g = 0; g < 4; ++g)
      Planes::get(unit + kScaleBytes + kPieceBytes * g, lane, f.q + 64 * g);
    *b = Format::assemble(f);
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Planes::template load<S, Q>(piece, w);
    for (int i = 0; i < 4; ++i) w[i] = Format::template points<S>(w[i]);
  }
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F*) {
    Scales::template load<S>(unit, s);
  }
};

}  // namespace pyflow::quant
