#include <cmath>

#include "sample/stages/stages.h"

namespace pyflow::stages {
namespace {

void top_p(Kept& kept, double p) {
  const float max = max_of(kept);
  cut_to_weight(kept, max, share(p, total_weight(kept, max)));
}

void min_p(Kept& kept, double p) {
  const double least = max_of(kept) + portable::log(p);
  std::erase_if(kept, [&](const Candidate& c) { return c.logit < least; });
}

Kept cut(const Logits& logits, const SamplerParams& p) {
  if (p.top_n_sigma <= 0 && p.tfs_z == 1 && p.typical_p == 1) return likeliest(logits, p);
  const double least = p.top_n_sigma > 0 ? least_by_sigma(logits, p.top_n_sigma) : kNever;
  Kept kept = p.top_k > 0 && p.top_k < logits.size()
                  ? logits.top(p.top_k)
                  : logits.at_least(std::nextafter(static_cast<float>(least), kNever));
  std::erase_if(kept, [&](const Candidate& c) { return c.logit < least; });
  if (p.tfs_z < 1) tail_free(kept, p.tfs_z);
  if (p.typical_p < 1) typical(kept, p.typical_p);
  if (p.top_p < 1) top_p(kept, p.top_p);
  if (p.min_p > 0) min_p(kept, p.min_p);
  return kept;
}

}  // namespace

Kept chain(const Logits& logits, const SamplerParams& p, const Noise& coins) {
  Kept kept = cut(logits, p);
  if (p.xtc_probability > 0 && p.xtc_threshold <= 0.5f && toss(coins, Coin::Xtc, p.xtc_probability))
    exclude_top(kept, p.xtc_threshold);
  return kept;
}

}  // namespace pyflow::stages
