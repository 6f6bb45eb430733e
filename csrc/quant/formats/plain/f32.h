// F32: one weight in 4 bytes. Multiplied with f32 activations.
//
// Tile unit, 16 rows x 1 k, 64 bytes:  value[16] f32
#pragma once

#include "quant/planes.h"

namespace pyflow::quant {

struct F32 {
  struct Block {
    float value;
  };
  static_assert(sizeof(Block) == 4);

  static constexpr int kBlock = 1, kUnitBytes = 64;

  static void dequantize(const Block& b, float* out) { *out = b.value; }
  static constexpr float kLargest = 0x1.fffffep127f;
  static Block encode(float x) { return {x}; }
  static void pack(const Block* b, int lane, uint8_t* unit) {
    __builtin_memcpy(unit + 4 * lane, b, 4);
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    __builtin_memcpy(b, unit + 4 * lane, 4);
  }

  template <class S>
  static inline typename S::F load(const uint8_t* unit) {
    return S::load(reinterpret_cast<const float*>(unit));
  }
};

}  // namespace pyflow::quant
