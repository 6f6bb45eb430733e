// Blocks of 64 codes of four bits that stand for one of sixteen floats, with a scale: bitsandbytes'.
// Multiplied with f32 activations.
//
//   bytes 0..3   d      f32
//   bytes 4..35  q[32]  code 2i in the low, code 2i + 1 in the high half of byte i
//
//   w = table[code] * d, rounded once
//
// Tile unit, 16 rows x 64 k, 576 bytes:  d[16] f32, 8 lines of 64 bytes. A line has a word for each
// row: k 8i + j in its bits 4j .. 4j + 3.
#pragma once

#include "quant/planes.h"
#include "quant/scaled_floats.h"

namespace pyflow::quant {

// Of: has table<S>(), its sixteen floats at a 64-byte border; a function for each kind of lanes, so
// that no instruction set exports it.
template <class Of>
struct Table16 {
  struct Block {
    float d;
    uint8_t q[32];
  };
  static_assert(sizeof(Block) == 36);

  static constexpr int kBlock = 64, kPieces = 1, kStep = 8;
  static constexpr int kScaleBytes = 64, kUnitBytes = kScaleBytes + 8 * kBlock;
  static constexpr int kCodes = 16;

  static void dequantize(const Block& b, float* out) {
    for (int i = 0; i < kBlock; ++i) out[i] = Of::template table<void>()[code(b, i)] * b.d;
  }
  // A block of codes [first, first + 64) of a file, which has the earlier one of two in the high
  // half of a byte. first is even.
  static Block of_codes(float d, const uint8_t* codes, int64_t first) {
    Block b;
    b.d = d;
    for (int i = 0; i < 32; ++i) {
      const uint8_t two = codes[first / 2 + i];
      b.q[i] = static_cast<uint8_t>(two << 4 | two >> 4);
    }
    return b;
  }
  static uint8_t code(const Block& b, int i) { return b.q[i / 2] >> i % 2 * 4 & 15; }
  static void set_code(Block& b, int i, uint8_t code) {
    const int shift = i % 2 * 4;
    b.q[i / 2] = static_cast<uint8_t>((b.q[i / 2] & ~(15 << shift)) | code << shift);
  }
  // Four bytes of a block are the word of a row.
  static void pack(const Block* b, int lane, uint8_t* unit) {
    __builtin_memcpy(unit + 4 * lane, &b->d, 4);
    for (int i = 0; i < 8; ++i)
      __builtin_memcpy(unit + kScaleBytes + 64 * i + 4 * lane, b->q + 4 * i, 4);
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    __builtin_memcpy(&b->d, unit + 4 * lane, 4);
    for (int i = 0; i < 8; ++i)
      __builtin_memcpy(b->q + 4 * i, unit + kScaleBytes + 64 * i + 4 * lane, 4);
  }

  template <class S>
  static inline typename S::F scale(const uint8_t* unit) {
    return S::load(reinterpret_cast<const float*>(unit));
  }
  template <class S>
  static inline void weights(const uint8_t* line, typename S::F s, typename S::F (&w)[kStep]) {
    const typename S::I words = S::load_i32(reinterpret_cast<const int32_t*>(line));
    const float* table = Of::template table<S>();
    w[0] = S::mul(S::pick16(table, words), s);
    w[1] = S::mul(S::pick16(table, S::template shr<4>(words)), s);
    w[2] = S::mul(S::pick16(table, S::template shr<8>(words)), s);
    w[3] = S::mul(S::pick16(table, S::template shr<12>(words)), s);
    w[4] = S::mul(S::pick16(table, S::template shr<16>(words)), s);
    w[5] = S::mul(S::pick16(table, S::template shr<20>(words)), s);
    w[6] = S::mul(S::pick16(table, S::template shr<24>(words)), s);
    w[7] = S::mul(S::pick16(table, S::template shr<28>(words)), s);
  }
};

}  // namespace pyflow::quant
