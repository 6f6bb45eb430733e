// Finds what is there twice.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

namespace pyflow {

// The indices of n things, sorted by key(i), of equal ones the first first. Sorted rather than
// hashed: no choice of keys makes this slow.
template <class Key>
std::vector<uint32_t> sorted_by(size_t n, Key&& key) {
  std::vector<uint32_t> order(n);
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(),
            [&](uint32_t a, uint32_t b) { return std::tuple(key(a), a) < std::tuple(key(b), b); });
  return order;
}

// Calls twins(a, b), a before b, for two neighbours in the order of equal keys.
template <class Key, class Twins>
void each_twins(size_t n, Key&& key, Twins&& twins) {
  const std::vector<uint32_t> order = sorted_by(n, key);
  for (size_t i = 1; i < n; ++i)
    if (key(order[i - 1]) == key(order[i])) twins(order[i - 1], order[i]);
}

}  // namespace pyflow
