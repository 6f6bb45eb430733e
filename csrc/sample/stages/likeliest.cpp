#include <cmath>

#include "sample/stages/stages.h"

namespace pyflow::stages {

Kept likeliest(const Logits& logits, const SamplerParams& params) {
  const bool top_k_on = params.top_k > 0 && params.top_k < logits.size();
  // min-p is a distance from the likeliest, whatever else is kept. Compared in double; as a float
  // it is rounded down, which gathers at most one step too many.
  const double least = params.min_p > 0 ? logits.max() + portable::log(params.min_p) : kNever;
  const float gathered = std::nextafter(static_cast<float>(least), kNever);
  Kept kept;
  if (top_k_on) {
    kept = logits.top(params.top_k);
    if (params.top_p < 1)
      cut_to_weight(kept, logits.max(), share(params.top_p, total_weight(kept, logits.max())));
  } else if (params.top_p < 1) {
    // The likeliest within some distance usually weigh enough, and most of the vocabulary lies
    // below.
    const uint64_t enough = share(params.top_p, logits.total_weight());
    for (const float distance : {4.0f, 8.0f, 10.0f, 12.0f, 16.0f, -kNever}) {
      const float from = std::max(gathered, logits.max() - distance);
      kept = logits.at_least(from);
      if (cut_to_weight(kept, logits.max(), enough) || from == gathered) break;
    }
  } else {
    kept = logits.at_least(gathered);
  }
  std::erase_if(kept, [&](const Candidate& c) { return c.logit < least; });
  return kept;
}

}  // namespace pyflow::stages
