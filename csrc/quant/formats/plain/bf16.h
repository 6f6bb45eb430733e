// BF16: one weight in 2 bytes, the upper half of an f32. Multiplied with f32 activations.
//
// Tile unit, 16 rows x 1 k, 32 bytes:  value[16] bf16
#pragma once

#include "quant/planes.h"

namespace pyflow::quant {

struct BF16 {
  struct Block {
    uint16_t value;
  };
  static_assert(sizeof(Block) == 2);

  static constexpr int kBlock = 1, kUnitBytes = 32;

  static void dequantize(const Block& b, float* out) {
    const uint32_t bits = static_cast<uint32_t>(b.value) << 16;
    __builtin_memcpy(out, &bits, 4);
  }
  static constexpr float kLargest = 0x1.fefffep127f;  // beyond, f32 rounds to infinity
  static Block encode(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
  }
  static void pack(const Block* b, int lane, uint8_t* unit) { store16(unit + 2 * lane, b->value); }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    b->value = load16(unit + 2 * lane);
  }

  template <class S>
  static inline typename S::F load(const uint8_t* unit) {
    return S::load_bf16(reinterpret_cast<const uint16_t*>(unit));
  }
};

}  // namespace pyflow::quant
