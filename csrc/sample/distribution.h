// A sparse distribution over tokens.
#pragma once

#include <cstdint>
#include <vector>

namespace pyflow {

struct Weighted {
  int32_t token;
  double weight;
};

// By ascending token, no token twice; weights are finite and not negative. Probabilities are
// weights over their sum, which need not be 1: without a division nothing is rounded.
using Distribution = std::vector<Weighted>;

// Sorts weights. Throws ShapeError unless that makes them a distribution.
Distribution make_distribution(std::vector<Weighted> weights);

double total(const Distribution& distribution);
// 0 for a token that is absent.
double weight_of(const Distribution& distribution, int32_t token);
// Scales the sum into [1/2, 1) by a power of two, which rounds nothing. Returns the new sum.
double rescale(Distribution& distribution);

}  // namespace pyflow
