#include "sample/stages/stages.h"

namespace pyflow::stages {

double dynamic_temperature(const Kept& kept, const SamplerParams& params) {
  const double given = params.temperature, range = params.dynatemp_range;
  if (range == 0 || kept.size() < 2) return given;
  const double least = std::max(0.0, given - range), most = given + range;
  const double share = Weights(kept).entropy() / portable::log(static_cast<double>(kept.size()));
  const double exponent = params.dynatemp_exponent;
  // Rounding may carry the entropy of equal tokens past its maximum.
  double factor = exponent == 0 ? 1 : 0;
  if (exponent > 0 && share > 1e-300)
    factor = portable::exp(std::min(0.0, exponent * portable::log(share)));
  return least + (most - least) * factor;
}

}  // namespace pyflow::stages
