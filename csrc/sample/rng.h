// The random decisions of policies. Tests put in an Rng that enumerates all outcomes.
#pragma once

#include <cstddef>
#include <span>

#include "sample/noise.h"

namespace pyflow {

struct Rng {
  virtual ~Rng() = default;
  // True with probability min(1, numerator / denominator).
  virtual bool accept(double numerator, double denominator) = 0;
  // An index, with probability proportional to its weight; at least one weight is above 0.
  virtual size_t draw(std::span<const double> weights) = 0;
};

// The decisions below the root at one position. Steps have different roots, so no two use the same
// numbers.
class KeyedRng final : public Rng {
 public:
  KeyedRng(uint64_t seed, uint32_t stream, int64_t position)
      : noise_(seed, stream, position, Purpose::Verify) {}

  // A ratio of 1 is always accepted: u is at most 1 - 2^-53, so the product, even rounded, stays
  // below the denominator.
  bool accept(double numerator, double denominator) override {
    return uniform() * denominator < numerator;
  }

  size_t draw(std::span<const double> weights) override {
    double sum = 0;
    for (const double w : weights) sum += w;
    const double at = uniform() * sum;
    double before = 0;
    size_t last = 0;
    for (size_t i = 0; i < weights.size(); ++i) {
      if (weights[i] == 0) continue;
      last = i;
      before += weights[i];
      if (at < before) break;
    }
    return last;
  }

 private:
  double uniform() {
    const uint32_t i = n_++;
    return Noise::uniform(noise_.bits(i / 2)[i & 1]);
  }

  Noise noise_;
  uint32_t n_ = 0;
};

}  // namespace pyflow
