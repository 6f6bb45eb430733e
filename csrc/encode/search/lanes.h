// What the searches for scales share. A lane of S (kernels/simd/scalar.h) is a sub-block: the
// weights that share a scale. Sixteen are searched side by side; nothing is summed across lanes, so
// the result of a lane depends only on its own weights, and every instruction set gives the same
// bits. Multiplications and additions are not fused: plain SSE2 would call a function for each.
#pragma once

#include <cstdint>

#include "quant/encoding.h"

namespace pyflow::quant {

inline constexpr int kLanes = 16;

// The weights of 16 sub-blocks, finite, and the importance of each, finite and at least 0; null: 1
// for each.
struct SearchInput {
  const float* x[kLanes];
  const float* importance[kLanes];
  bool on_grid;  // also try the grids of already quantized weights
};

// A grid of integers: values are a scale times Low .. High.
template <int Low, int High>
struct Integers {
  static constexpr int kLow = Low, kHigh = High, kExact = 1;
  static constexpr int kLevels = High - Low + 1;
  static constexpr bool kEven = true;

  // To nearest, ties to even: a sum of 1.5 * 2^23 and a small number has no fraction.
  template <class S>
  static inline typename S::F nearest(typename S::F y) {
    const auto magic = S::set1(0x1.8p23f);
    y = S::max(S::min(y, S::set1(High)), S::set1(Low));
    return S::sub(S::add(y, magic), magic);
  }
  template <class S>
  static inline typename S::F index(typename S::F value) {
    return S::sub(value, S::set1(Low));
  }
};

// 1 / d, and 0 for d = 0. The least d of a search is 2^-24 / 2^17; anything smaller counts as 0.
template <class S>
inline typename S::F inverse(typename S::F d) {
  const auto size = S::abs(d), least = S::set1(0x1p-60f);
  return S::where_less(size, least, S::zero(), S::div(S::set1(1.0f), d));
}

// Sixteen sub-blocks of N weights: x[k] has weight k of each.
template <class S, int N>
struct Lanes {
  using F = typename S::F;
  F x[N], w[N];
  // The powers of two that scaled x, and their inverses.
  alignas(64) float up[kLanes], down[kLanes];
  bool on_grid;

  // `shared` consecutive lanes are a super-block. Its largest magnitude is scaled into [1, 2), so
  // that squares stay in range; so is its largest importance. If all weights are below 2^-25, half
  // of the least f16, they become 0, because no block can represent them.
  Lanes(const SearchInput& in, int shared) : on_grid(in.on_grid) {
    transpose(in.x, x);
    normalize(x, shared, 0x1p-25f, up, down);
    if (in.importance[0]) {
      alignas(64) float to[kLanes], from[kLanes];
      transpose(in.importance, w);
      normalize(w, shared, 0x1p-126f, to, from);
      // Weights without importance get sane values, too.
      for (int k = 0; k < N; ++k) w[k] = S::max(w[k], S::set1(0x1p-20f));
    } else {
      for (int k = 0; k < N; ++k) w[k] = S::set1(1.0f);
    }
  }

  // A number per lane as f16, rounded to the nearest finite one, in the weights' own units; and
  // back.
  void to_halves(F d, uint16_t* h) const {
    const F limit = S::set1(65504.0f);
    d = S::min(S::mul(d, S::load(down)), limit);
    S::store_f16(h, S::max(d, S::sub(S::zero(), limit)));
  }
  F from_halves(const uint16_t* h) const { return S::mul(S::load_f16(h), S::load(up)); }
  F as_halves(F d) const {
    uint16_t h[kLanes];
    to_halves(d, h);
    return from_halves(h);
  }

  // The f16 that are `step` (-1, 0, 1) further from zero, but not past zero or the largest.
  static void next_halves(const uint16_t* h, int step, uint16_t* out) {
    for (int l = 0; l < kLanes; ++l) {
      const int size = (h[l] & 0x7fff) + step;
      out[l] = size < 0 || size > 0x7bff ? h[l] : static_cast<uint16_t>((h[l] & 0x8000) | size);
    }
  }

  // Writes index[k] of lane l to fields[l / shared].q.
  static void store_indices(const F* index, int shared, Fields* fields) {
    alignas(64) float row[kLanes];
    for (int k = 0; k < N; ++k) {
      S::store(row, index[k]);
      for (int l = 0; l < kLanes; ++l)
        fields[l / shared].q[l % shared * N + k] = static_cast<uint8_t>(row[l]);
    }
  }

 private:
  static void transpose(const float* const* from, F* to) {
    alignas(64) float row[kLanes];
    for (int k = 0; k < N; ++k) {
      for (int l = 0; l < kLanes; ++l) row[l] = from[l][k];
      to[k] = S::load(row);
    }
  }
  static void normalize(F* v, int shared, float least, float* to, float* from) {
    F largest = S::zero();
    for (int k = 0; k < N; ++k) largest = S::max(largest, S::abs(v[k]));
    alignas(64) float of_lane[kLanes];
    S::store(of_lane, largest);
    for (int first = 0; first < kLanes; first += shared) {
      float most = 0.0f;
      for (int l = first; l < first + shared; ++l) most = of_lane[l] > most ? of_lane[l] : most;
      for (int l = first; l < first + shared; ++l) {
        to[l] = most < least ? 0.0f : power_of_two(254 - biased_exponent(most));
        from[l] = most < least ? 0.0f : power_of_two(biased_exponent(most));
      }
    }
    const F factor = S::load(to);
    for (int k = 0; k < N; ++k) v[k] = S::mul(v[k], factor);
  }
  static int biased_exponent(float x) {
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    return static_cast<int>(bits >> 23);
  }
  static float power_of_two(int biased_exponent) {
    const uint32_t bits = static_cast<uint32_t>(biased_exponent) << 23;
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
  }
};

}  // namespace pyflow::quant
