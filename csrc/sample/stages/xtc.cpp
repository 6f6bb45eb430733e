#include "sample/stages/stages.h"

namespace pyflow::stages {

void exclude_top(Kept& kept, double threshold) {
  const Weights weights(kept);
  const double least = threshold * static_cast<double>(weights.total);
  const auto is_top = [&](const Candidate& c) {
    return static_cast<double>(Logits::weight(c.logit, weights.max)) >= least;
  };
  const auto rest = std::partition(kept.begin(), kept.end(), is_top);
  if (rest - kept.begin() < 2) return;
  const Candidate last = *std::max_element(kept.begin(), rest);  // in order of likelihood
  kept.erase(kept.begin(), rest);
  kept.push_back(last);
}

}  // namespace pyflow::stages
