// Probabilities of candidates as whole numbers: units of 2^-40 of the likeliest one's weight, which
// add up alike in any order. So what a stage keeps depends on no algorithm that finds it.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <vector>

#include "sample/logits.h"

namespace pyflow::stages {

// Candidates that may still be drawn, in any order, at least one.
using Kept = std::vector<Candidate>;

float max_of(const Kept& kept);
uint64_t total_weight(const Kept& kept, float max);

// The sums over candidates that stages need.
struct Weights {
  explicit Weights(const Kept& kept);
  float max;
  uint64_t total = 0;
  // The mean of max - logit by the softmax of the candidates.
  double mean_distance = 0;
  // Of that softmax, in nats.
  double entropy() const;
};

// The weight that has the share `p` of the total.
inline uint64_t share(double p, uint64_t total) {
  return static_cast<uint64_t>(std::ceil(p * static_cast<double>(total)));
}

// Shortens to the first candidates by `less` that together reach `target`; false where all of them
// do not.
template <class Less = std::less<>>
bool cut_to_weight(Kept& candidates, float max, uint64_t target, Less less = {}) {
  if (total_weight(candidates, max) < target) return false;
  // Halving search without sorting: the tokens before `begin` weigh less than the target, those
  // before `end` reach it.
  auto begin = candidates.begin(), end = candidates.end();
  uint64_t before = 0;
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, less);
    uint64_t half = 0;
    for (auto c = begin; c != middle; ++c) half += Logits::weight(c->logit, max);
    if (before + half >= target) {
      end = middle;
    } else {
      before += half;
      begin = middle;
    }
  }
  candidates.erase(end, candidates.end());
  return true;
}

}  // namespace pyflow::stages
