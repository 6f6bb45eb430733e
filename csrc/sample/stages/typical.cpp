#include <cmath>

#include "sample/stages/stages.h"

namespace pyflow::stages {

// With d = max - logit, a token's surprise is d + ln Z and the entropy E[d] + ln Z: they differ by
// d - E[d].
void typical(Kept& kept, double p) {
  const Weights weights(kept);
  const auto far = [&](const Candidate& c) {
    return std::abs((double{weights.max} - c.logit) - weights.mean_distance);
  };
  cut_to_weight(kept, weights.max, share(p, weights.total),
                [&](const Candidate& a, const Candidate& b) {
                  const double x = far(a), y = far(b);
                  return x != y ? x < y : a < b;
                });
}

}  // namespace pyflow::stages
