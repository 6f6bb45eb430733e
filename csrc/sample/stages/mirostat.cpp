#include <cmath>

#include "sample/stages/stages.h"

namespace pyflow::stages {
namespace {

// The exponent of Zipf's law by least squares over the m likeliest: b_i = ln(p_i / p_(i+1)) against
// t_i = ln((i+1) / i).
double zipf_exponent(const Logits& logits, double temperature) {
  constexpr int64_t m = 100;
  const Kept top = logits.top(m);
  double products = 0, squares = 0;
  for (size_t i = 0; i + 1 < top.size(); ++i) {
    const double t = portable::log(static_cast<double>(i + 2) / static_cast<double>(i + 1));
    const double b = (double{top[i].logit} - top[i + 1].logit) / temperature;
    products += t * b;
    squares += t * t;
  }
  return squares > 0 ? products / squares : 0;
}

// round((eps 2^mu / (1 - n^-eps))^(1/s)) with eps = s - 1, at least 1; by logarithms, for the powers
// may be any size. The quotient is 1 / ln n at eps = 0, and positive on either side.
int64_t zipf_count(double s, double mu, int64_t n) {
  const double eps = s - 1, log_n = portable::log(static_cast<double>(n));
  const double x = std::abs(eps) * log_n;
  double log_quotient;
  if (x < 1e-9)
    log_quotient = -portable::log(log_n);
  else
    log_quotient = portable::log(std::abs(eps) / (1 - portable::exp(-x))) - (eps < 0 ? x : 0);
  const double log_power = log_quotient + mu * portable::kLn2;
  if (s <= 0) return log_power > 0 ? n : 1;  // all alike
  const double log_k = log_power / s;
  if (log_k >= log_n) return n;
  if (log_k <= 0) return 1;
  return std::clamp<int64_t>(static_cast<int64_t>(1 / portable::exp(-log_k) + 0.5), 1, n);
}

}  // namespace

double log_sum(const Logits& logits, double temperature) {
  double sum = 0;
  logits.for_blocks([&](int64_t b) { return logits.block_max(b) > kNever; },
                    [&](int64_t, const float* x, int64_t n) {
                      for (int64_t i = 0; i < n; ++i)
                        sum += portable::exp((double{x[i]} - logits.max()) / temperature);
                    });
  return portable::log(sum);
}

Kept mirostat(const Logits& logits, int version, double temperature, double mu, double log_sum) {
  if (logits.size() == 1) return logits.top(1);
  if (version == 1)
    return logits.top(zipf_count(zipf_exponent(logits, temperature), mu, logits.size()));
  // -log2 p <= mu where logit >= max - temperature (mu ln 2 - ln sum).
  const double least = logits.max() - temperature * (mu * portable::kLn2 - log_sum);
  if (least > logits.max()) return logits.top(1);
  Kept kept = logits.at_least(std::nextafter(static_cast<float>(least), kNever));
  std::erase_if(kept, [&](const Candidate& c) { return c.logit < least; });
  return kept;
}

double surprise(const Logits& logits, int32_t token, double temperature, double log_sum) {
  const double distance = (double{logits.max()} - logits.at(token)) / temperature;
  return (distance + log_sum) / portable::kLn2;
}

}  // namespace pyflow::stages
