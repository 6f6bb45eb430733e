// F16: one weight in 2 bytes, IEEE binary16. Multiplied with f32 activations.
//
// Tile unit, 16 rows x 1 k, 32 bytes:  value[16] f16
#pragma once

#include "quant/half.h"
#include "quant/planes.h"

namespace pyflow::quant {

struct F16 {
  struct Block {
    uint16_t value;
  };
  static_assert(sizeof(Block) == 2);

  static constexpr int kBlock = 1, kUnitBytes = 32;

  static void dequantize(const Block& b, float* out) { *out = from_half(b.value); }
  static constexpr float kLargest = 0x1.ffdffep15f;  // beyond, f32 rounds to infinity
  static Block encode(float x) { return {to_half(x)}; }
  static void pack(const Block* b, int lane, uint8_t* unit) { store16(unit + 2 * lane, b->value); }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    b->value = load16(unit + 2 * lane);
  }

  template <class S>
  static inline typename S::F load(const uint8_t* unit) {
    return S::load_f16(reinterpret_cast<const uint16_t*>(unit));
  }
};

}  // namespace pyflow::quant
