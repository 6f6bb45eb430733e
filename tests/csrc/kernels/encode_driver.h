// Runs every op of an encode table; a part of kernels_driver.cpp.
#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "driver_data.h"
#include "encode/encoder.h"

namespace pyflow {

static_assert(sizeof(EncodeTable) == (kDTypeCount + 2) * sizeof(void*),
              "run_encode() has to know every op");

// Seven super-blocks: the last search has spare lanes.
inline void run_search(const EncodeTable& t, Random& random, Record& out) {
  constexpr int64_t kRows = 7, kCols = 256;
  const std::vector<float> x = random.reals(kRows * kCols);
  std::vector<float> importance = random.reals(kCols);
  for (float& v : importance) v = v * v;
  for (const DTypeInfo& format : kDTypes) {
    if (!can_encode(format.dtype)) continue;
    for (const bool weighed : {false, true}) {
      const Encoder encoder(format.dtype, kCols, weighed ? importance.data() : nullptr, t);
      std::vector<uint8_t> blocks(kRows * encoder.row_bytes());
      encoder.encode(x.data(), kRows, 0, blocks.data());
      out.add("search", blocks);
    }
  }
}

// Beam search to even levels, and to uneven ones that ascend or descend.
inline void run_round(const EncodeTable& t, Random& random, Record& out) {
  constexpr int64_t kLevels = 11;
  for (const int64_t n : {1, 32, 64})
    for (const bool even : {true, false}) {
      const size_t size = static_cast<size_t>(16 * n);
      std::vector<float> x = random.reals(16 * n), w = random.reals(16 * n), levels;
      const std::vector<float> factors = random.reals(n * (n + 3));
      if (even) {
        levels = random.reals(2 * 16 * n);
        levels[size + 3] = 0.0f;  // a step
      } else {
        const std::vector<float> steps = random.reals(16 * n);
        for (int64_t i = 0; i < kLevels; ++i)
          for (size_t k = 0; k < size; ++k)
            levels.push_back(static_cast<float>(i * i - 40) * 0.1f * steps[k]);
      }
      std::vector<float> importance = random.reals(n);
      for (float& i : importance) i = std::fabs(i);
      std::vector<int32_t> q(size), parents(size);
      t.round({.x = x.data(),
               .w = w.data(),
               .levels = levels.data(),
               .n_levels = kLevels,
               .even = even,
               .factors = factors.data(),
               .factors_stride = n + 3,
               .importance = importance.data(),
               .n = n,
               .q = q.data(),
               .parents = parents.data()});
      out.add("round", x);
      out.add("round", q);
      out.add("round", parents);
    }
}

// Outer products of adjacent rows: up to seven rows of `a`, and all whole sixteens of columns.
inline void run_outer(const EncodeTable& t, Random& random, Record& out) {
  for (const int64_t n : {16, 17, 64, 100, 576})
    for (const bool odd : {false, true}) {
      const int64_t columns = n / 16 * 16;
      const std::vector<float> a = odd ? random.odd_reals(n) : random.reals(n), b = random.reals(n);
      std::vector<float> sums(static_cast<size_t>(7 * columns), 0.5f);
      t.add_outer({a.data(), 1, b.data(), 0, n - 7, sums.data(), columns, 7, columns});
      out.add("add_outer", sums);
    }
}

// Rows of `a` that lie apart, and more columns of it than are taken at a time.
inline void run_outer_apart(const EncodeTable& t, Random& random, Record& out) {
  constexpr int64_t kRows = 41, kStride = 44;
  for (const int64_t n : {64, 100, 576})
    for (const bool odd : {false, true}) {
      const int64_t columns = n / 16 * 16;
      const std::vector<float> a = odd ? random.odd_reals(n) : random.reals(n), b = random.reals(n);
      std::vector<float> sums(static_cast<size_t>(kRows * columns), 0.5f);
      t.add_outer({a.data(), kStride, b.data(), 0, (n - kRows) / kStride + 1, sums.data(), columns,
                   kRows, columns});
      out.add("add_outer apart", sums);
    }
}

inline void run_encode(const EncodeTable& t, Random& random, Record& out) {
  run_search(t, random, out);
  run_round(t, random, out);
  run_outer(t, random, out);
  run_outer_apart(t, random, out);
}

}  // namespace pyflow
