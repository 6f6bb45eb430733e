#include "sample/stages/weights.h"

namespace pyflow::stages {

float max_of(const Kept& kept) {
  float max = kNever;
  for (const Candidate& c : kept) max = std::max(max, c.logit);
  return max;
}

uint64_t total_weight(const Kept& kept, float max) {
  uint64_t sum = 0;
  for (const Candidate& c : kept) sum += Logits::weight(c.logit, max);
  return sum;
}

Weights::Weights(const Kept& kept) : max(max_of(kept)) {
  // A term w d of the mean is below 0.37 units, so 2^24 of them cannot overflow either.
  uint64_t sum = 0;
  for (const Candidate& c : kept) {
    const uint64_t w = Logits::weight(c.logit, max);
    total += w;
    sum += static_cast<uint64_t>(static_cast<double>(w) * (double{max} - c.logit));
  }
  mean_distance = static_cast<double>(sum) / static_cast<double>(total);
}

double Weights::entropy() const {
  return portable::log(static_cast<double>(total) * 0x1p-40) + mean_distance;
}

}  // namespace pyflow::stages
