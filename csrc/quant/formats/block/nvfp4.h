// NVFP4: 64 weights in 36 bytes, 4.5 bits each: floats of four bits, four sub-blocks of 16.
//
//   scales[4] | 4 x qs[8]      value j = point(nibble) * s / 2
//
//   Points are MXFP4's; nibbles of a sub-block are ordered as in Q4_0. A scale is a float of four
//   bits of exponent and three of mantissa, whose sign is passed over:
//   (8 + mantissa) * 2^(exponent - 10), for exponent 0 mantissa * 2^-9, for the byte 0x7f 0.
//
// Tile unit, 16 rows x 64 k, 576 bytes, which has 0 for 0x7f:  a dword per row, the four scales |
//   Nibbles 512
#pragma once

#include "quant/formats/block/mxfp4.h"

namespace pyflow::quant {

struct NVFP4 {
  struct Block {
    uint8_t scales[4], qs[32];
  };
  static_assert(sizeof(Block) == 36);

  static constexpr int kBlock = 64, kPieces = 1, kSubBlock = 16;
  static constexpr int kScaleBytes = 64, kPieceBytes = Nibbles::kBytes;
  static constexpr int kUnitBytes = kScaleBytes + kPieceBytes;
  static constexpr bool kSigned = false, kMinimum = false;
  static constexpr int kMax = 24, kOffset = 12;

  // Half of what the byte says.
  static float scale(uint8_t byte) {
    if (byte == 0x7f) return 0.0f;
    const int exponent = byte >> 3 & 15, mantissa = byte & 7;
    return exponent == 0 ? static_cast<float>(mantissa) * 0x1p-10f
                         : static_cast<float>((8 + mantissa) << exponent) * 0x1p-11f;
  }

  static void integers(const Block& b, uint8_t* q) {
    for (int i = 0; i < 4; ++i) get_nibbles(b.qs + 8 * i, 8, q + 16 * i);
  }

  static void dequantize(const Block& b, float* out) {
    uint8_t q[64];
    integers(b, q);
    for (int j = 0; j < 64; ++j)
      out[j] = scale(b.scales[j / 16]) * static_cast<float>(kFp4Points[q[j]] - kOffset);
  }

  static void pack(const Block* b, int lane, uint8_t* unit) {
    uint8_t q[64];
    integers(*b, q);
    Nibbles::put(unit + kScaleBytes, lane, q);
    for (int i = 0; i < 4; ++i)
      quad(unit, 0, lane)[i] = b->scales[i] == 0x7f ? uint8_t{0} : b->scales[i];
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    uint8_t q[64] = {};
    Nibbles::get(unit + kScaleBytes, lane, q);
    for (int i = 0; i < 4; ++i) {
      b->scales[i] = quad(unit, 0, lane)[i];
      set_nibbles(b->qs + 8 * i, 8, q + 16 * i);
    }
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    MXFP4::weights<S, Q>(piece, w);
  }
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F*) {
    const typename S::I bytes = S::load_i32(reinterpret_cast<const int32_t*>(unit));
    s[0] = number<S>(bytes);
    s[1] = number<S>(S::template shr<8>(bytes));
    s[2] = number<S>(S::template shr<16>(bytes));
    s[3] = number<S>(S::template shr<24>(bytes));
  }

 private:
  // scale() of the low bytes, an integer times a power of two: no number on the way is subnormal.
  template <class S>
  static inline typename S::F number(typename S::I byte) {
    using I = typename S::I;
    const I exponent = S::iand(S::template shr<3>(byte), S::iset1(15));
    const I normal = S::template shr<4>(S::iadd(exponent, S::iset1(15)));  // 1, for exponent 0 0
    const I integer = S::ior(S::iand(byte, S::iset1(7)), S::template shl<3>(normal));
    const I power = S::isub(S::iadd(exponent, S::iset1(127 - 10)), normal);
    return S::mul(S::to_f(integer), S::bits_f(S::template shl<23>(power)));
  }
};

}  // namespace pyflow::quant
