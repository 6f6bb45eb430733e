// IQ1_S: 256 weights in 50 bytes, 1.5625 bits each; eight sub-blocks of 32.
//
//   d f16 | qs[32] | qh u16[8]
//
//   Byte i of qs is eight weights: the low bits of a point g of kIq1Grid, whose high three are bits
//   3 * (i % 4) of qh[i / 4]. Above them qh has the sub-block's scale, three bits, and in the top
//   bit a sign. value = d * (2 * scale + 1) * (g + 1/8, or - 1/8), g of -1, 0 or 1
//
// Tile unit, 16 rows x 256 k, 1152 bytes, 1.44 times the file, where the sign lies above the scale:
//   OddScales 128 | 4 x TwoBits 256
#pragma once

#include "quant/grids/iq1.h"
#include "quant/lattice.h"
#include "quant/unfolded_block.h"

namespace pyflow::quant {

using Iq1Codes = Lattice<8, 2>;

struct IQ1_S : UnfoldedBlock<IQ1_S, TwoBits<0>, OddScales<8, 0>, 32> {
  struct Block {
    uint16_t d;
    uint8_t qs[32];
    uint16_t qh[8];
  };
  static_assert(sizeof(Block) == 50);

  static constexpr bool kMinimum = true;
  static constexpr int kMax = 2, kOffset = 0;

  static void dequantize(const Block& b, float* out) {
    const Fields f = fields(b);
    for (int l = 0; l < 256; ++l) {
      const int scale = f.scales[l / 32];
      const float s = from_half(f.d) * static_cast<float>(2 * (scale & 7) + 1);
      out[l] = s * (static_cast<float>(f.q[l] - 1) + (scale & 8 ? -0.125f : 0.125f));
    }
  }

  static Fields fields(const Block& b) {
    Fields f;
    f.d = b.d;
    for (int i = 0; i < 32; ++i) {
      const int high = b.qh[i / 4] >> 3 * (i % 4) & 7;
      Iq1Codes::get(kIq1Grid[b.qs[i] | high << 8], 0, f.q + 8 * i);
    }
    for (int i = 0; i < 8; ++i) f.scales[i] = static_cast<uint8_t>(b.qh[i] >> 12);
    return f;
  }
  static Block assemble(const Fields& f) {
    Block b = {f.d, {}, {}};
    for (int i = 0; i < 8; ++i) b.qh[i] = static_cast<uint16_t>(f.scales[i] << 12);
    for (int i = 0; i < 32; ++i) {
      const int number = Iq1Codes::number(kIq1Grid, f.q + 8 * i);
      b.qs[i] = static_cast<uint8_t>(number);
      b.qh[i / 4] = static_cast<uint16_t>(b.qh[i / 4] | (number >> 8 & 7) << 3 * (i % 4));
    }
    return b;
  }

  // g is one less than its code: the minimum is -7/8 or -9/8 of the scale. Exact in f32: 11 bits
  // times 4, and times 4 once more.
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F* m) {
    using Scales = OddScales<8, 0>;
    const typename S::F d = Scales::unit<S>(unit);
    const typename S::I both = Scales::words<S>(unit, 0);
    part<S>(both, d, s, m);
    part<S>(S::template shr<4>(both), d, s + 4, m + 4);
  }

 private:
  template <class S>
  static inline void part(typename S::I bytes, typename S::F d, typename S::F* s,
                          typename S::F* m) {
    OddScales<8, 0>::odd<S>(bytes, 0x07070707, d, s);
    const typename S::I sign = S::iand(S::template shr<3>(bytes), S::iset1(0x01010101));
    const typename S::I eighths = S::iadd(S::template shl<1>(sign), S::iset1(0x07070707));
    scaled_bytes<S>(eighths, S::set1(-0.125f), m);
    for (int j = 0; j < 4; ++j) m[j] = S::mul(s[j], m[j]);
  }
};

}  // namespace pyflow::quant
