#include "sample/distribution.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "core/errors.h"

namespace pyflow {

Distribution make_distribution(std::vector<Weighted> weights) {
  std::ranges::sort(weights, {}, &Weighted::token);
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto [token, weight] = weights[i];
    const std::string where = std::string("distribution: token ") + std::to_string(token) + ": ";
    if (!(weight >= 0) || !std::isfinite(weight))
      throw ShapeError(where + "expected a probability, found " + std::to_string(weight));
    if (i > 0 && weights[i - 1].token == token) throw ShapeError(where + "found twice");
  }
  if (!weights.empty() && total(weights) == 0)
    throw ShapeError("distribution: expected a token that is possible, found none");
  return weights;
}

double total(const Distribution& distribution) {
  double sum = 0;
  for (const Weighted& w : distribution) sum += w.weight;
  return sum;
}

double weight_of(const Distribution& distribution, int32_t token) {
  const auto at = std::ranges::lower_bound(distribution, token, {}, &Weighted::token);
  return at != distribution.end() && at->token == token ? at->weight : 0.0;
}

double rescale(Distribution& distribution) {
  int exponent = 0;
  const double sum = std::frexp(total(distribution), &exponent);
  for (Weighted& w : distribution) w.weight = std::ldexp(w.weight, -exponent);
  return sum;
}

}  // namespace pyflow
