// The emulator's registers, and its dots by AVX2 where the CPU has that: the same bits, fifty times
// as fast.
#pragma once

#include <cstdint>

namespace pyflow::emulator {

inline constexpr int kRows = 16, kBytes = 64, kLanes = kBytes / 4;

union Tile {
  alignas(64) uint8_t bytes[kRows][kBytes];
  uint16_t halves[kRows][kBytes / 2];
  uint32_t words[kRows][kLanes];
};

// Rows of C, and dwords in a row of A.
struct Size {
  int rows, depth;
};

// Whether these may be called.
bool has_avx2();
// Adds to all lanes of the first size.rows rows of C.
void dot_s8_by_avx2(const Tile& a, const Tile& b, Tile& c, Size size);
void dot_su8_by_avx2(const Tile& a, const Tile& b, Tile& c, Size size);
// Returns false, and leaves C, where a NaN stands among the inputs: x86's rules for them differ.
bool dot_bf16_by_avx2(const Tile& a, const Tile& b, Tile& c, Size size);

}  // namespace pyflow::emulator
