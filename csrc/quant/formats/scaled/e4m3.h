// E4M3: 128 weights in 132 bytes (8.25 bits): FP8 with one sign, four exponent and three mantissa
// bits, as files of safetensors have it. Multiplied with f32 activations.
//
//   bytes 0..3    d       f32
//   bytes 4..131  c[128]  one byte each
//
//   w = v(c) * d    v: (-1)^s * 2^(e - 7) * (1 + m / 8), and with e = 0 (-1)^s * 2^-6 * m / 8
//
// The bits of c, with four of them above for the exponent, are those of an f16: v(c) = 2^8 * that.
// So w is f16 * (2^8 d), rounded once; d is below 2^120, or 2^8 d is infinite. The codes 7f and ff,
// NaNs elsewhere, are 480 and -480 here: whoever makes blocks of a file refuses them.
//
// Tile unit, 16 rows x 128 k, 2112 bytes:  d[16] f32, 32 lines of 64 bytes. In line i the byte at
// 2 * lane + t is k 4i + t, and that at 32 + 2 * lane + t is k 4i + 2 + t.
#pragma once

#include "quant/half.h"
#include "quant/planes.h"
#include "quant/scaled_floats.h"

namespace pyflow::quant {

struct E4M3 {
  struct Block {
    float d;
    uint8_t c[128];
  };
  static_assert(sizeof(Block) == 132);

  static constexpr int kBlock = 128, kPieces = 2, kStep = 4;
  static constexpr int kScaleBytes = 64, kUnitBytes = kScaleBytes + 16 * kBlock;
  static constexpr float kUp = 256.0f;
  static constexpr int kCodes = 256;

  static void dequantize(const Block& b, float* out) {
    const float up = b.d * kUp;
    for (int i = 0; i < kBlock; ++i)
      out[i] = from_half(static_cast<uint16_t>((b.c[i] & 0x80) << 8 | (b.c[i] & 0x7f) << 7)) * up;
  }
  // A block of codes [first, first + 128) of a file.
  static Block of_codes(float d, const uint8_t* codes, int64_t first) {
    Block b;
    b.d = d;
    __builtin_memcpy(b.c, codes + first, sizeof b.c);
    return b;
  }
  static uint8_t code(const Block& b, int i) { return b.c[i]; }
  static void set_code(Block& b, int i, uint8_t code) { b.c[i] = code; }
  static void pack(const Block* b, int lane, uint8_t* unit) {
    __builtin_memcpy(unit + 4 * lane, &b->d, 4);
    for (int i = 0; i < kBlock; ++i) unit[place(i, lane)] = b->c[i];
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    __builtin_memcpy(&b->d, unit + 4 * lane, 4);
    for (int i = 0; i < kBlock; ++i) b->c[i] = unit[place(i, lane)];
  }

  template <class S>
  static inline typename S::F scale(const uint8_t* unit) {
    return S::mul(S::load(reinterpret_cast<const float*>(unit)), S::set1(kUp));
  }
  template <class S>
  static inline void weights(const uint8_t* line, typename S::F s, typename S::F (&w)[kStep]) {
    S::load_e4m3(line, w);
    for (int i = 0; i < kStep; ++i) w[i] = S::mul(w[i], s);
  }

 private:
  static int place(int k, int lane) {
    return kScaleBytes + k / 4 * 64 + k % 4 / 2 * 32 + 2 * lane + k % 2;
  }
};

}  // namespace pyflow::quant
