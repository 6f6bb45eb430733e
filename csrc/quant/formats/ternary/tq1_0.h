// TQ1_0: 256 weights of -1, 0 or 1 in 54 bytes, 1.6875 bits each.
//
//   qs[48] | qh[4] | d f16      value = d * (q - 1)
//
//   A byte is five digits of base 3 as the fraction b / 256 of 1, the first after the point first;
//   one of qh has four. Digit n of bytes 0 .. 31 are weights 32 n .. 32 n + 31, of bytes 32 .. 47
//   weights 160 + 16 n and following, of qh weights 240 + 4 n and following.
//   For example, byte 128 is 1/2 = 0.11111.. in base 3: five weights of zero.
//
// Tile unit, 16 rows x 256 k, 1088 bytes, 1.26 times the file:  OneScale 64 | 4 x TwoBits 256
#pragma once

#include "quant/unfolded_block.h"

namespace pyflow::quant {

// N bytes of `Digits` digits, and their values, which are q[n * N + i] for digit n of byte i.
template <int N, int Digits>
struct Ternary {
  static void get(const uint8_t* bytes, uint8_t* q) {
    for (int i = 0; i < N; ++i) {
      uint8_t rest = bytes[i];
      for (int n = 0; n < Digits; ++n) {
        q[n * N + i] = static_cast<uint8_t>(rest * 3 >> 8);
        rest = static_cast<uint8_t>(rest * 3);
      }
    }
  }
  // The least byte of these digits, of five with zeros at the end.
  static void set(uint8_t* bytes, const uint8_t* q) {
    for (int i = 0; i < N; ++i) {
      int sum = 0;
      for (int n = 0; n < 5; ++n) sum = 3 * sum + (n < Digits ? q[n * N + i] : 0);
      bytes[i] = static_cast<uint8_t>((sum * 256 + 242) / 243);
    }
  }
};

struct TQ1_0 : UnfoldedBlock<TQ1_0, TwoBits<0>, OneScale, 32> {
  struct Block {
    uint8_t qs[48], qh[4];
    uint16_t d;
  };
  static_assert(sizeof(Block) == 54);

  static constexpr int kMax = 2, kOffset = 1;

  static Fields fields(const Block& b) {
    Fields f;
    f.d = b.d;
    Ternary<32, 5>::get(b.qs, f.q);
    Ternary<16, 5>::get(b.qs + 32, f.q + 160);
    Ternary<4, 4>::get(b.qh, f.q + 240);
    return f;
  }
  static Block assemble(const Fields& f) {
    Block b = {{}, {}, f.d};
    Ternary<32, 5>::set(b.qs, f.q);
    Ternary<16, 5>::set(b.qs + 32, f.q + 160);
    Ternary<4, 4>::set(b.qh, f.q + 240);
    return b;
  }
};

}  // namespace pyflow::quant
