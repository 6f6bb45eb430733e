// The text before a draw, read from its end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

namespace pyflow {

// Tokens that a sampler has accepted, then a path of drafted ones behind them.
struct TextView {
  std::span<const int32_t> accepted;
  std::span<const int32_t> path;
  // So many at the end, the path among them, belong to the answer; those before to the prompt.
  int64_t n_drawn = 0;

  int64_t size() const { return static_cast<int64_t>(accepted.size() + path.size()); }
  // The i-th token from the end; 0 is the last one.
  int32_t back(int64_t i) const {
    const auto n = static_cast<int64_t>(path.size());
    return i < n ? path[static_cast<size_t>(n - 1 - i)]
                 : accepted[accepted.size() - 1 - static_cast<size_t>(i - n)];
  }
  // How many tokens a stage sees that looks back `most` tokens; -1: all.
  int64_t n_seen(int64_t most) const { return most < 0 ? size() : std::min(size(), most); }
};

}  // namespace pyflow
