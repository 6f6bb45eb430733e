// A distribution over tokens, most of which have no part in it.
#pragma once

#include <cstdint>
#include <vector>

namespace pyflow {

struct Weighted {
  int32_t token;
  double weight;
};

// Ascending in token, no token twice; weights are finite and not negative. Probabilities are
// weights over their sum, which need not be 1: what divides nothing rounds nothing.
using Law = std::vector<Weighted>;

// Sorts what somebody else gave. Throws ShapeError where no order makes it a law.
Law make_law(std::vector<Weighted> weights);

double total(const Law& law);
// 0 for a token that it does not hold.
double weight_of(const Law& law, int32_t token);
// Brings the sum to 1/2 or more and below 1, by a power of two, which rounds nothing. Returns it.
double rescale(Law& law);

}  // namespace pyflow
