#include "sample/law.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/errors.h"

namespace pyflow {

Law make_law(std::vector<Weighted> weights) {
  std::ranges::sort(weights, {}, &Weighted::token);
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto [token, weight] = weights[i];
    const std::string where = std::string("law: token ") + std::to_string(token) + ": ";
    if (!(weight >= 0) || !std::isfinite(weight))
      throw ShapeError(where + "expected a probability, found " + std::to_string(weight));
    if (i > 0 && weights[i - 1].token == token) throw ShapeError(where + "found twice");
  }
  if (!weights.empty() && total(weights) == 0)
    throw ShapeError("law: expected a token that is possible, found none");
  return weights;
}

double total(const Law& law) {
  double sum = 0;
  for (const Weighted& w : law) sum += w.weight;
  return sum;
}

double weight_of(const Law& law, int32_t token) {
  const auto at = std::ranges::lower_bound(law, token, {}, &Weighted::token);
  return at != law.end() && at->token == token ? at->weight : 0.0;
}

double rescale(Law& law) {
  int exponent = 0;
  const double sum = std::frexp(total(law), &exponent);
  for (Weighted& w : law) w.weight = std::ldexp(w.weight, -exponent);
  return sum;
}

}  // namespace pyflow
