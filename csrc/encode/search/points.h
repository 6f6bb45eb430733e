// Grids of unevenly spaced points for the search of a scale.
#pragma once

#include <cstdint>

#include "quant/encoding.h"

namespace pyflow::quant {

// Table[i] - Offset for i below N, ascending.
template <const int8_t* Table, int N, int Offset>
struct Points {
  static constexpr int kLow = Table[0] - Offset, kHigh = Table[N - 1] - Offset;
  static constexpr int kLevels = N;
  static constexpr bool kEven = false;
  // The point of least magnitude that is a power of two or its negative: with it an f16 scale
  // reaches any f16.
  static constexpr int kExact = [] {
    int found = 0;
    for (int i = 0; i < N; ++i) {
      const int p = Table[i] - Offset, size = p < 0 ? -p : p;
      if (size != 0 && (size & (size - 1)) == 0 &&
          (found == 0 || size < (found < 0 ? -found : found)))
        found = p;
    }
    return found;
  }();
  static_assert(kExact != 0);

  // Value and index of the point nearest to y: one more for each midpoint between points below y.
  template <class S>
  static inline typename S::F nearest(typename S::F y) {
    auto value = S::set1(kLow);
    for (int i = 0; i < N - 1; ++i) {
      const auto step = S::set1(Table[i + 1] - Table[i]);
      value = S::add(value, S::where_less(middle<S>(i), y, step, S::zero()));
    }
    return value;
  }
  template <class S>
  static inline typename S::F index(typename S::F value) {
    auto index = S::zero();
    for (int i = 0; i < N - 1; ++i)
      index = S::add(index, S::where_less(middle<S>(i), value, S::set1(1.0f), S::zero()));
    return index;
  }

 private:
  template <class S>
  static inline typename S::F middle(int i) {
    return S::set1(0.5f * static_cast<float>(Table[i] + Table[i + 1] - 2 * Offset));
  }
};

}  // namespace pyflow::quant
