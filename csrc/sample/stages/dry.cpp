#include "sample/stages/dry.h"

#include <algorithm>
#include <limits>
#include <string>

#include "core/errors.h"

namespace pyflow {
namespace {

// For k = 1..n-1, how many tokens before the k-th from the end are those at the end of the text:
// the Z-function of the reversed text.
std::vector<int64_t> matches(const TextView& text, int64_t n) {
  std::vector<int64_t> z(static_cast<size_t>(n));
  int64_t left = 0, right = 0;  // text [left, right) equals [0, right - left)
  for (int64_t k = 1; k < n; ++k) {
    int64_t length = 0;
    if (k < right) length = std::min(right - k, z[static_cast<size_t>(k - left)]);
    while (k + length < n && text.back(length) == text.back(k + length)) ++length;
    if (k + length > right) left = k, right = k + length;
    z[static_cast<size_t>(k)] = length;
  }
  return z;
}

// base^n, or more than any float.
double power(double base, int64_t n) {
  double result = 1;
  for (; n > 0; n /= 2, base *= base) {
    if (n % 2) result *= base;
    if (result > std::numeric_limits<float>::max() || base == 1) break;
  }
  return result;
}

}  // namespace

DryBreakers::DryBreakers(const std::vector<std::vector<int32_t>>& sequences) {
  for (const auto& sequence : sequences) {
    if (sequence.empty()) throw ShapeError("DRY breaker: expected at least one token, found none");
    tails_[sequence.front()].emplace_back(sequence.begin() + 1, sequence.end());
  }
}

bool DryBreakers::breaks(int32_t token) const {
  const auto found = tails_.find(token);
  return found != tails_.end() &&
         std::ranges::any_of(found->second, [](const auto& tail) { return tail.empty(); });
}

int64_t DryBreakers::n_behind(const TextView& text, int64_t n) const {
  for (int64_t i = 0; i < n; ++i) {
    const auto found = tails_.find(text.back(i));
    if (found == tails_.end()) continue;
    int64_t longest = -1;
    for (const auto& tail : found->second) {
      const auto length = static_cast<int64_t>(tail.size());
      if (length > i || length <= longest) continue;
      int64_t k = 0;
      while (k < length && tail[static_cast<size_t>(k)] == text.back(i - 1 - k)) ++k;
      if (k == length) longest = length;
    }
    if (longest >= 0) return i - longest;
  }
  return n;
}

namespace stages {

std::map<int32_t, double> dry(const TextView& text, const SamplerParams& params) {
  const int64_t n = text.n_seen(params.dry_penalty_last_n), allowed = params.dry_allowed_length;
  const DryBreakers* breakers = params.dry_breakers.get();
  const int64_t most = breakers ? breakers->n_behind(text, n) : n;
  std::map<int32_t, double> out;
  if (most < allowed || n < 2) return out;
  const std::vector<int64_t> z = matches(text, n);
  std::map<int32_t, int64_t> longest;
  for (int64_t k = 1; k < n; ++k)
    if (const int64_t length = std::min(z[static_cast<size_t>(k)], most); length >= allowed) {
      auto& known = longest[text.back(k - 1)];
      known = std::max(known, length);
    }
  for (const auto& [token, length] : longest)
    if (!breakers || !breakers->breaks(token))
      out[token] = params.dry_multiplier * power(params.dry_base, length - allowed);
  return out;
}

}  // namespace stages
}  // namespace pyflow
