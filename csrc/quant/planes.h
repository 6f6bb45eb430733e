// Bit planes: how the integers of sixteen rows and 64 k lie in 64-byte lines.
//
// A quad is four consecutive weights of one row, one per byte. A piece (16 rows x 64 k) has sixteen
// quads per row: quad i holds k = 4i .. 4i+3. In every line, byte 4 * lane + t belongs to row
// `lane` and to weight t of a quad, so one line against four broadcast activations serves sixteen
// rows.
//
//   Bytes     16 lines   line i: quad i
//   Nibbles    8 lines   line j: quad j in the low, quad j + 8 in the high half of each byte
//   TwoBits    4 lines   line g: quads 4g .. 4g+3, two bits each, from the low end
//   Bits       2 lines   line h: quads 8h .. 8h+7, one bit each, from the low end
//
// So the low nibbles are k 0..31 and the high ones k 32..63, and quarter g of a piece (16 k) is
// quads 4g .. 4g+3. Planes with a shift hold those bits of a weight: 6 bits = Nibbles<0> +
// TwoBits<4>.
//
// Of two planes, low bits and high ones, the lines lie in the order in which the quarters first
// need them (Planes): a kernel reads its tiles from the first byte to the last, for prefetchers
// follow nothing else as well (docs/performance.md).
//
// put() and get() move one row between 64 bytes and the planes (the planes' memory starts as zeros,
// the bytes of get() too: both only set bits). load() and merge() give a kernel quarter Q as four
// vectors. A plane's lines lie side by side from a pointer, or are Lines.
#pragma once

#include <cstdint>

namespace pyflow::quant {

inline uint32_t load32(const uint8_t* p) {
  uint32_t x;
  __builtin_memcpy(&x, p, 4);
  return x;
}
inline uint16_t load16(const uint8_t* p) {
  uint16_t x;
  __builtin_memcpy(&x, p, 2);
  return x;
}
inline void store32(uint8_t* p, uint32_t x) { __builtin_memcpy(p, &x, 4); }
inline void store16(uint8_t* p, uint16_t x) { __builtin_memcpy(p, &x, 2); }
inline void or32(uint8_t* p, uint32_t x) { store32(p, load32(p) | x); }

// Where a plane's lines lie that are among those of another: line i is line Order::at(i) from
// `first`.
template <class Byte, class Order>
struct Lines {
  Byte* first;
};
template <class Byte>
inline Byte* line_at(Byte* plane, int i) {
  return plane + 64 * i;
}
template <class Byte, class Order>
inline Byte* line_at(Lines<Byte, Order> plane, int i) {
  return plane.first + 64 * Order::at(i);
}

// One row's quad in a line.
template <class Plane>
inline auto* quad(Plane plane, int line, int lane) {
  return line_at(plane, line) + 4 * lane;
}

// 16-bit pairs of bytes shifted so that bit From of each byte lands on bit To; the rest is to be
// masked.
template <class S, int From, int To>
inline typename S::B bmove(typename S::B a) {
  if constexpr (From < To) {
    return S::template bshl<To - From>(a);
  } else if constexpr (From > To) {
    return S::template bshr<From - To>(a);
  } else {
    return a;
  }
}

// d times each of the four bytes of a lane.
template <class S>
inline void scaled_bytes(typename S::I bytes, typename S::F d, typename S::F* out) {
  const typename S::I byte = S::iset1(255);
  out[0] = S::mul(d, S::to_f(S::iand(bytes, byte)));
  out[1] = S::mul(d, S::to_f(S::iand(S::template shr<8>(bytes), byte)));
  out[2] = S::mul(d, S::to_f(S::iand(S::template shr<16>(bytes), byte)));
  out[3] = S::mul(d, S::to_f(S::template shr<24>(bytes)));
}

struct Bytes {
  static constexpr int kBytes = 16 * 64;
  template <class Plane>
  static void put(Plane plane, int lane, const uint8_t* q) {
    for (int i = 0; i < 16; ++i) or32(quad(plane, i, lane), load32(q + 4 * i));
  }
  template <class Plane>
  static void get(Plane plane, int lane, uint8_t* q) {
    for (int i = 0; i < 16; ++i) or32(q + 4 * i, load32(quad(plane, i, lane)));
  }
  template <class S, int Q, class Plane>
  static inline void load(Plane plane, typename S::B (&w)[4]) {
    for (int i = 0; i < 4; ++i) w[i] = S::bload(line_at(plane, 4 * Q + i));
  }
};

struct Nibbles {
  static constexpr int kBytes = 8 * 64;
  // The quarter that first needs a line.
  static constexpr int first_use(int line) { return line / 4; }
  template <class Plane>
  static void put(Plane plane, int lane, const uint8_t* q) {
    for (int j = 0; j < 8; ++j) {
      const uint32_t lo = load32(q + 4 * j), hi = load32(q + 4 * j + 32);
      or32(quad(plane, j, lane), (lo & 0x0f0f0f0f) | (hi & 0x0f0f0f0f) << 4);
    }
  }
  template <class Plane>
  static void get(Plane plane, int lane, uint8_t* q) {
    for (int j = 0; j < 8; ++j) {
      const uint32_t both = load32(quad(plane, j, lane));
      or32(q + 4 * j, both & 0x0f0f0f0f);
      or32(q + 4 * j + 32, both >> 4 & 0x0f0f0f0f);
    }
  }
  template <class S, int Q, class Plane>
  static inline void load(Plane plane, typename S::B (&w)[4]) {
    const typename S::B mask = S::bset1(0x0f);
    for (int i = 0; i < 4; ++i) {
      const typename S::B both = S::bload(line_at(plane, 4 * (Q % 2) + i));
      w[i] = S::band(bmove<S, Q / 2 * 4, 0>(both), mask);
    }
  }
};

template <int Shift>
struct TwoBits {
  static constexpr int kBytes = 4 * 64;
  static constexpr int first_use(int line) { return line; }
  template <class Plane>
  static void put(Plane plane, int lane, const uint8_t* q) {
    for (int i = 0; i < 16; ++i) {
      const uint32_t two = load32(q + 4 * i) >> Shift & 0x03030303;
      or32(quad(plane, i / 4, lane), two << 2 * (i % 4));
    }
  }
  template <class Plane>
  static void get(Plane plane, int lane, uint8_t* q) {
    for (int i = 0; i < 16; ++i) {
      const uint32_t two = load32(quad(plane, i / 4, lane)) >> 2 * (i % 4) & 0x03030303;
      or32(q + 4 * i, two << Shift);
    }
  }
  template <class S, int Q, class Plane>
  static inline void load(Plane plane, typename S::B (&w)[4]) {
    for (int i = 0; i < 4; ++i) w[i] = S::bset1(0);
    merge<S, Q>(plane, w);
  }
  template <class S, int Q, class Plane>
  static inline void merge(Plane plane, typename S::B (&w)[4]) {
    const typename S::B line = S::bload(line_at(plane, Q)), mask = S::bset1(3 << Shift);
    w[0] = S::bmerge(bmove<S, 0, Shift>(line), mask, w[0]);
    w[1] = S::bmerge(bmove<S, 2, Shift>(line), mask, w[1]);
    w[2] = S::bmerge(bmove<S, 4, Shift>(line), mask, w[2]);
    w[3] = S::bmerge(bmove<S, 6, Shift>(line), mask, w[3]);
  }
};

template <int Shift>
struct Bits {
  static constexpr int kBytes = 2 * 64;
  static constexpr int first_use(int line) { return 2 * line; }
  template <class Plane>
  static void put(Plane plane, int lane, const uint8_t* q) {
    for (int i = 0; i < 16; ++i) {
      const uint32_t one = load32(q + 4 * i) >> Shift & 0x01010101;
      or32(quad(plane, i / 8, lane), one << i % 8);
    }
  }
  template <class Plane>
  static void get(Plane plane, int lane, uint8_t* q) {
    for (int i = 0; i < 16; ++i) {
      const uint32_t one = load32(quad(plane, i / 8, lane)) >> i % 8 & 0x01010101;
      or32(q + 4 * i, one << Shift);
    }
  }
  template <class S, int Q, class Plane>
  static inline void merge(Plane plane, typename S::B (&w)[4]) {
    constexpr int kFirst = Q % 2 * 4;
    const typename S::B line = S::bload(line_at(plane, Q / 2)), mask = S::bset1(1 << Shift);
    w[0] = S::bmerge(bmove<S, kFirst + 0, Shift>(line), mask, w[0]);
    w[1] = S::bmerge(bmove<S, kFirst + 1, Shift>(line), mask, w[1]);
    w[2] = S::bmerge(bmove<S, kFirst + 2, Shift>(line), mask, w[2]);
    w[3] = S::bmerge(bmove<S, kFirst + 3, Shift>(line), mask, w[3]);
  }
};

template <class Low, class High>
struct Planes {
  static constexpr int kBytes = Low::kBytes + High::kBytes;

  static void put(uint8_t* piece, int lane, const uint8_t* q) {
    Low::put(Lines<uint8_t, LowOrder>{piece}, lane, q);
    High::put(Lines<uint8_t, HighOrder>{piece}, lane, q);
  }
  static void get(const uint8_t* piece, int lane, uint8_t* q) {
    Low::get(Lines<const uint8_t, LowOrder>{piece}, lane, q);
    High::get(Lines<const uint8_t, HighOrder>{piece}, lane, q);
  }
  template <class S, int Q>
  static inline void load(const uint8_t* piece, typename S::B (&w)[4]) {
    Low::template load<S, Q>(Lines<const uint8_t, LowOrder>{piece}, w);
    High::template merge<S, Q>(Lines<const uint8_t, HighOrder>{piece}, w);
  }

 private:
  // Lines of a plane that quarters before q need first, or this one as well.
  template <class Plane>
  static constexpr int until(int q, bool with) {
    int n = 0;
    for (int i = 0; i < Plane::kBytes / 64; ++i)
      n += Plane::first_use(i) < q || (with && Plane::first_use(i) == q);
    return n;
  }
  // In each quarter the low bits come first.
  struct LowOrder {
    static constexpr int at(int i) { return i + until<High>(Low::first_use(i), false); }
  };
  struct HighOrder {
    static constexpr int at(int i) { return i + until<Low>(High::first_use(i), true); }
  };
};

}  // namespace pyflow::quant
