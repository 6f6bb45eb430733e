#include <cmath>
#include <iterator>

#include "sample/stages/stages.h"

namespace pyflow::stages {

// With d = max - logit, a token's surprise is d + ln Z and the entropy E[d] + ln Z: they differ by
// d - E[d].
void typical(Kept& kept, double p) {
  const Weights weights(kept);
  const auto far = [&](const Candidate& c) {
    return std::abs((double{weights.max} - c.logit) - weights.mean_distance);
  };
  const auto nearer = [&](const Candidate& a, const Candidate& b) {
    const double x = far(a), y = far(b);
    return x != y ? x < y : a < b;
  };
  const uint64_t target = share(p, weights.total);
  // The tokens within some distance usually weigh enough, and most of a large vocabulary lies
  // beyond.
  for (const double distance : {1.0, 2.0, 4.0, 8.0}) {
    Kept near;
    std::ranges::copy_if(kept, std::back_inserter(near),
                         [&](const Candidate& c) { return far(c) <= distance; });
    if (!near.empty() && cut_to_weight(near, weights.max, target, nearer)) {
      kept = std::move(near);
      return;
    }
  }
  cut_to_weight(kept, weights.max, target, nearer);
}

}  // namespace pyflow::stages
