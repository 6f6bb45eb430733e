#include "sample/logits.h"

#include <cmath>
#include <functional>
#include <string>

#include "core/errors.h"

namespace pyflow {
namespace {

struct BlockSurvey {
  float max;
  bool broken;  // a NaN or +inf is among them
};

// Lanes instead of a single running maximum, which the compiler may not reorder into vectors.
BlockSurvey survey_block(const float* x, int64_t n) {
  constexpr int64_t kLanes = 16;
  float best[kLanes];
  int32_t broken[kLanes] = {};
  std::fill_n(best, kLanes, kNever);
  const auto look = [&](float v, int64_t lane) {
    best[lane] = v > best[lane] ? v : best[lane];
    broken[lane] |= !(v <= std::numeric_limits<float>::max());
  };
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) look(x[i + lane], lane);
  for (; i < n; ++i) look(x[i], 0);
  BlockSurvey out{kNever, false};
  for (int64_t lane = 0; lane < kLanes; ++lane) {
    out.max = std::max(out.max, best[lane]);
    out.broken |= broken[lane] != 0;
  }
  return out;
}

}  // namespace

Logits::Logits(std::span<const float> row, std::vector<Candidate> changed, TokenMask mask)
    : row_(row), changed_(std::move(changed)), mask_(mask) {
  if (!changed_.empty() && (changed_.front().token < 0 || changed_.back().token >= size()))
    throw Error("sampler: token " +
                std::to_string(changed_.front().token < 0 ? changed_.front().token
                                                          : changed_.back().token) +
                " of a bias or of the history is not in the vocabulary of " +
                std::to_string(size()) + " tokens");
  if (const int64_t bad = survey(); bad >= 0)
    throw Error("sampler: the logit of token " + std::to_string(bad) + " is " +
                (std::isnan(at(static_cast<int32_t>(bad))) ? "NaN" : "infinite") +
                ": the model's numbers are broken; try another model file");
  if (max_ == kNever)
    throw Error("sampler: expected a possible token, found every one of " + std::to_string(size()) +
                " at minus infinity; relax the logit bias" +
                (mask_.empty() ? "" : ", the bans or the grammar"));
}

std::optional<Logits> Logits::part(std::span<const float> row, std::vector<Candidate> changed,
                                   TokenMask mask) {
  Logits logits;
  logits.row_ = row;
  logits.changed_ = std::move(changed);
  logits.mask_ = mask;
  if (logits.survey() >= 0) return std::nullopt;
  return logits;
}

int64_t Logits::survey() {
  int64_t bad = -1;
  block_max_.reserve(static_cast<size_t>((size() + kBlock - 1) / kBlock));
  for_blocks([](int64_t) { return true; },
             [&](int64_t begin, const float* x, int64_t n) {
               const BlockSurvey s = survey_block(x, n);
               if (s.broken && bad < 0)
                 bad = begin + (std::find_if_not(x, x + n,
                                                 [](float v) {
                                                   return v <= std::numeric_limits<float>::max();
                                                 }) -
                                x);
               block_max_.push_back(s.max);
               max_ = std::max(max_, s.max);
             });
  return bad;
}

float Logits::at(int32_t token) const {
  if (!mask_.empty() && !allows(token)) return kNever;
  const auto change = std::ranges::lower_bound(changed_, token, {}, &Candidate::token);
  const bool is_changed = change != changed_.end() && change->token == token;
  return is_changed ? change->logit : row_[static_cast<size_t>(token)];
}

int32_t Logits::argmax() const {
  int32_t token = -1;
  for_blocks([&](int64_t b) { return token < 0 && block_max(b) == max_; },
             [&](int64_t begin, const float* x, int64_t n) {
               token = static_cast<int32_t>(begin + (std::find(x, x + n, max_) - x));
             });
  return token;
}

std::vector<Candidate> Logits::top(int64_t k) const {
  k = std::min(k, size());
  if (k < 1) return {};
  float least = kNever;
  if (k <= static_cast<int64_t>(block_max_.size())) {
    // At least k tokens, the maxima of k blocks, reach the k-th largest block maximum.
    std::vector<float> maxima = block_max_;
    const auto kth = maxima.begin() + (k - 1);
    std::nth_element(maxima.begin(), kth, maxima.end(), std::greater<>());
    least = *kth;
  }
  std::vector<Candidate> out = at_least(least);
  if (static_cast<int64_t>(out.size()) > k) {
    std::nth_element(out.begin(), out.begin() + (k - 1), out.end());
    out.resize(static_cast<size_t>(k));
  }
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<Candidate> Logits::at_least(float least) const {
  std::vector<Candidate> out;
  for_blocks([&](int64_t b) { return block_max(b) >= least && block_max(b) > kNever; },
             [&](int64_t begin, const float* x, int64_t n) {
               for (int64_t i = 0; i < n; ++i)
                 if (x[i] >= least && x[i] > kNever)
                   out.push_back({x[i], static_cast<int32_t>(begin + i)});
             });
  return out;
}

uint64_t Logits::total_weight() const {
  uint64_t sum = 0;
  for_blocks([&](int64_t b) { return block_max(b) > kNever; },
             [&](int64_t, const float* x, int64_t n) {
               for (int64_t i = 0; i < n; ++i) sum += weight(x[i], max_);
             });
  return sum;
}

double Logits::sum_exp() const {
  double sum = 0.0;
  for_blocks([&](int64_t b) { return block_max(b) > kNever; },
             [&](int64_t, const float* x, int64_t n) {
               for (int64_t i = 0; i < n; ++i)
                 sum += portable::exp(static_cast<double>(x[i]) - max_);
             });
  return sum;
}

}  // namespace pyflow
