// Points of a lattice: N weights, whose levels of `Bits` bits are an entry of a table (grids/) and
// whose signs are bits of their own. A code is a level and, above it, the sign.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace pyflow::quant {

template <int N, int Bits>
struct Lattice {
  static void get(uint16_t entry, int signs, uint8_t* codes) {
    for (int j = 0; j < N; ++j)
      codes[j] =
          static_cast<uint8_t>((entry >> Bits * j & ((1 << Bits) - 1)) | (signs >> j & 1) << Bits);
  }
  // The number of the codes' levels in an ascending table that has them.
  template <size_t Size>
  static int number(const uint16_t (&table)[Size], const uint8_t* codes) {
    int entry = 0;
    for (int j = 0; j < N; ++j) entry |= (codes[j] & ((1 << Bits) - 1)) << Bits * j;
    return static_cast<int>(std::lower_bound(table, table + Size, entry) - table);
  }
};

// Of eight codes.
template <int Bits>
inline int signs_of(const uint8_t* codes) {
  int signs = 0;
  for (int j = 0; j < 8; ++j) signs |= (codes[j] >> Bits & 1) << j;
  return signs;
}

// Files that have seven of eight signs leave out the last, which makes the number of minuses even.
inline int eight_signs(uint32_t seven) {
  return static_cast<int>(seven | (std::popcount(seven) & 1u) << 7);
}

}  // namespace pyflow::quant
