// Where a policy's random decisions come from. Tests put a chance in its place that goes through
// all of them.
#pragma once

#include <cstddef>
#include <span>

#include "sample/noise.h"

namespace pyflow {

struct Chance {
  virtual ~Chance() = default;
  // True with probability min(1, numerator / denominator).
  virtual bool accept(double numerator, double denominator) = 0;
  // An index, with a probability proportional to its weight; one weight at least is above 0.
  virtual size_t draw(std::span<const double> weights) = 0;
};

// The decisions below the root at one position. Steps have different roots, so none meets the
// numbers of another.
class KeyedChance final : public Chance {
 public:
  KeyedChance(uint64_t seed, uint32_t stream, int64_t position)
      : noise_(seed, stream, position, Purpose::Verify) {}

  // The product stays below the denominator, rounded too, as u is at most 1 - 2^-53: a ratio of 1
  // is always accepted.
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
