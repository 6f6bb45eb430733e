#include <cmath>

#include "sample/stages/stages.h"

namespace pyflow::stages {

void tail_free(Kept& kept, double z) {
  if (kept.size() <= 2) return;
  std::sort(kept.begin(), kept.end());
  const float max = kept.front().logit;
  const auto p = [&](size_t i) { return portable::exp(double{kept[i].logit} - max); };
  std::vector<double> curvature(kept.size() - 2);
  double total = 0;
  double before = p(0), here = p(1);
  for (size_t i = 0; i < curvature.size(); ++i) {
    const double after = p(i + 2);
    total += curvature[i] = std::abs((before - here) - (here - after));
    before = here, here = after;
  }
  if (total == 0) return;  // on a straight line nothing is a tail
  double sum = curvature[0];
  for (size_t i = 1; i < curvature.size(); ++i)
    if ((sum += curvature[i]) > z * total) {
      kept.resize(i);
      return;
    }
}

}  // namespace pyflow::stages
