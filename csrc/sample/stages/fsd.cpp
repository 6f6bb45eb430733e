#include "sample/stages/stages.h"

namespace pyflow::stages {
namespace {

// How often a candidate follows, in the text, the last m tokens of the text, m = 0..n-1; and how
// often anything does.
struct Counts {
  std::vector<int64_t> all;
  std::vector<std::vector<int64_t>> of;  // per candidate
};

Counts count(const Kept& candidates, const TextView& text, int64_t n) {
  const auto orders = static_cast<size_t>(n);
  Counts counts{std::vector<int64_t>(orders),
                std::vector<std::vector<int64_t>>(candidates.size(), std::vector<int64_t>(orders))};
  for (int64_t i = 0; i < text.size(); ++i) {
    // The token is back(i), the m-th before it back(i + m).
    int64_t alike = 0;
    while (alike + 1 < n && i + 1 + alike < text.size() &&
           text.back(alike) == text.back(i + 1 + alike))
      ++alike;
    const auto reached = static_cast<size_t>(alike);
    for (size_t m = 0; m <= reached; ++m) ++counts.all[m];
    for (size_t c = 0; c < candidates.size(); ++c)
      if (candidates[c].token == text.back(i))
        for (size_t m = 0; m <= reached; ++m) ++counts.of[c][m];
  }
  return counts;
}

// From the longest context down to none. A context that a candidate never followed passes its share
// on to the next shorter one, as in the authors' program (github.com/LHRYANG/FSD).
double anti_probability(const Counts& counts, size_t candidate, double beta) {
  double q = 0, left = 1;
  for (size_t m = counts.all.size(); m-- > 0;) {
    const auto found = static_cast<double>(counts.of[candidate][m]);
    if (found == 0) continue;
    const auto all = static_cast<double>(counts.all[m]);
    q += m == 0 ? left * (found / all) : left * beta * (found / (all + 1));
    left -= left * beta;
  }
  return q;
}

}  // namespace

Kept fsd(const Logits& logits, const TextView& text, const SamplerParams& params) {
  const Kept candidates = logits.top(params.fsd_k);
  const double sum = logits.sum_exp(), alpha = params.fsd_alpha;
  const bool is_long = text.size() >= params.fsd_n - 1;
  const Counts counts = count(candidates, text, is_long ? params.fsd_n : 1);
  std::vector<std::pair<double, Candidate>> scored;
  for (size_t c = 0; c < candidates.size(); ++c) {
    const double p = portable::exp(double{candidates[c].logit} - logits.max()) / sum;
    const double q = is_long ? anti_probability(counts, c, params.fsd_beta) : 0;
    scored.emplace_back((1 - alpha) * p - alpha * q, candidates[c]);
  }
  std::ranges::sort(scored, [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  Kept ranked;
  for (const auto& [score, candidate] : scored) ranked.push_back(candidate);
  return ranked;
}

bool fsd_samples(const SamplerParams& params, int64_t n_drawn, const Noise& coins) {
  return params.fsd == 2 && n_drawn < params.fsd_random_n &&
         toss(coins, Coin::Fsd, params.fsd_random_p);
}

}  // namespace pyflow::stages
