// Pairs of weights in seven bits: 3.5 bits each, for eleven levels, 11 * 11 = 121 < 128.
//
//   Of N weights, 64 or 32, p and p + N/2 are a pair, v = q_p + 11 * q_(p+N/2): N/2 times 7 bits in
//   7 L bytes, L = N/16. Byte t has v_t in its low seven bits; the top bits of bytes i, i + L,
//   i + 2L .. i + 6L are the seven of v_(7L+i), from the low end. The codes 121 .. 127, which no
//   encoder writes, are read as pairs of 0 .. 6 and 10.
//
// A piece of a tile, 16 rows x 64 k, is seven lines of such bytes, a quad of each row in each, and
// an eighth in their top bits. There neighbours are pairs, so that a code becomes two bytes side by
// side: line i has k 8i .. 8i+7, those of quad 2i (planes.h) in its even and those of quad 2i + 1
// in its odd bytes. And the first of a pair is not the level itself but the digit that stands for
// it:
//
//   256 * (digit + 11 * level) / 11 = 256 * level + 256 * digit / 11
//
// has the level in its high byte and in the low nibble of its low byte another number for each
// digit (kNibbles): one multiplication makes both indices of a table.
//
// "Inferflow: an Efficient and Highly Configurable Inference Engine for Large Language Models" (Shi
// et al., 2024), section 3, has pairs of neighbours in 7 bits; in files these are N/2 apart.
#pragma once

#include <cstring>
#include <type_traits>

#include "quant/planes.h"

namespace pyflow::quant {

struct Pairs {
  static constexpr int kLevels = 11, kLines = 7;
  static constexpr int kBytes = 64 * kLines;    // of a piece
  static constexpr int kRowBytes = 4 * kLines;  // of a row's 64 weights

  template <int N = 64>
  static void get(const uint8_t* codes, uint8_t* q) {
    constexpr int kPairs = N / 2;
    uint8_t v[kPairs];
    split<Line<N>>(codes, v);
    for (int p = 0; p < kPairs; ++p) {
      const int high = v[p] / kLevels;
      q[p] = static_cast<uint8_t>(v[p] - kLevels * high);
      q[p + kPairs] = static_cast<uint8_t>(high < kLevels ? high : kLevels - 1);
    }
  }
  template <int N = 64>
  static void set(uint8_t* codes, const uint8_t* q) {
    constexpr int kPairs = N / 2;
    uint8_t v[kPairs];
    for (int p = 0; p < kPairs; ++p) v[p] = static_cast<uint8_t>(q[p] + kLevels * q[p + kPairs]);
    join<Line<N>>(v, codes);
  }

  // A row's levels into a piece and out of it.
  static void put(uint8_t* piece, int lane, const uint8_t* q) {
    uint8_t codes[kRowBytes], v[32];
    for (int p = 0; p < 32; ++p)
      v[p] = static_cast<uint8_t>(kDigits[q[first(p)]] + kLevels * q[first(p) + 1]);
    join<uint32_t>(v, codes);
    for (int i = 0; i < kLines; ++i) store32(quad(piece, i, lane), load32(codes + 4 * i));
  }
  static void get(const uint8_t* piece, int lane, uint8_t* q) {
    uint8_t codes[kRowBytes], v[32];
    for (int i = 0; i < kLines; ++i) store32(codes + 4 * i, load32(quad(piece, i, lane)));
    split<uint32_t>(codes, v);
    for (int p = 0; p < 32; ++p) {
      q[first(p)] = static_cast<uint8_t>(level_at(kNibbles[v[p] % kLevels]));
      q[first(p) + 1] = static_cast<uint8_t>(v[p] / kLevels);
    }
  }

  // The table of a kernel, where value(level) is what a level stands for.
  struct Table {
    int8_t bytes[16];
  };
  template <class Value>
  static constexpr Table table(Value value) {
    Table t = {};
    for (int i = 0; i < 16; ++i) t.bytes[i] = static_cast<int8_t>(value(level_at(i)));
    return t;
  }

  // Quarter Q, each level as the table has it.
  template <class S, int Q>
  static inline void load(const uint8_t* piece, const Table& table, typename S::B (&w)[4]) {
    for (int i = 0; i < 2; ++i) {
      const typename S::B v =
          2 * Q + i < kLines ? S::bload(piece + 64 * (2 * Q + i)) : last<S>(piece);
      w[2 * i] = S::lut16(table.bytes, S::template belevenths<0>(v));
      w[2 * i + 1] = S::lut16(table.bytes, S::template belevenths<1>(v));
    }
  }

 private:
  // Of 256 * digit / 11.
  static constexpr int kNibbles[kLevels] = {0, 7, 14, 5, 13, 4, 11, 2, 10, 1, 8};
  // The digit that stands for a level: level_at(kNibbles[kDigits[level]]) == level.
  static constexpr uint8_t kDigits[kLevels] = {0, 9, 7, 2, 5, 3, 4, 1, 10, 6, 8};

  // The level whose byte a table has at i: i itself, and for the nibbles above 10 those three that
  // no nibble up to 10 stands for. 12 and 15 are never looked up.
  static constexpr int level_at(int i) { return i < kLevels ? i : i == 11 ? 9 : i == 13 ? 6 : 3; }
  // The first weight of a tile's code p.
  static constexpr int first(int p) { return p / 4 * 8 + p % 4 / 2 * 2 + p % 2 * 4; }

  // The bytes that are done at once: a seventh of those of N weights.
  template <int N>
  using Line = std::conditional_t<N == 64, uint32_t, uint16_t>;
  template <class Word>
  static Word load(const uint8_t* p) {
    Word w;
    std::memcpy(&w, p, sizeof w);
    return w;
  }
  template <class Word>
  static void store(uint8_t* p, uint32_t x) {
    const auto w = static_cast<Word>(x);
    std::memcpy(p, &w, sizeof w);
  }

  // Seven lines of bytes to eight of codes, and back.
  template <class Word>
  static void split(const uint8_t* codes, uint8_t* v) {
    constexpr int kStep = sizeof(Word);
    uint32_t last = 0;
    for (int i = 0; i < kLines; ++i) {
      const uint32_t line = load<Word>(codes + kStep * i);
      store<Word>(v + kStep * i, line & 0x7f7f7f7f);
      last |= (line >> 7 & 0x01010101) << i;
    }
    store<Word>(v + kStep * kLines, last);
  }
  template <class Word>
  static void join(const uint8_t* v, uint8_t* codes) {
    constexpr int kStep = sizeof(Word);
    const uint32_t last = load<Word>(v + kStep * kLines);
    for (int i = 0; i < kLines; ++i)
      store<Word>(codes + kStep * i, load<Word>(v + kStep * i) | (last >> i & 0x01010101) << 7);
  }

  // The eighth line: an average moves the bits that are there down and puts another one on top.
  // What it rounds up is even as long as it does so.
  template <class S>
  static inline typename S::B last(const uint8_t* piece) {
    const typename S::B top = S::bset1(0x80);
    typename S::B v = S::bset1(0);
#pragma GCC unroll 7
    for (int i = 0; i < kLines; ++i) v = S::bavg(v, S::band(S::bload(piece + 64 * i), top));
    return v;
  }
};

// The codes of a block of N weights in a file.
template <int N>
struct PairCodes {
  static constexpr int kBytes = N * 7 / 16;
  static void get(const uint8_t* codes, uint8_t* q) { Pairs::get<N>(codes, q); }
  static void set(uint8_t* codes, const uint8_t* q) { Pairs::set<N>(codes, q); }
};

}  // namespace pyflow::quant
