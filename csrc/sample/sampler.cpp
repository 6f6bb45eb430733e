#include "sample/sampler.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>

#include "core/errors.h"

namespace pyflow {
namespace {

template <class T>
void require(bool ok, const char* name, const char* expected, T found) {
  if (ok) return;
  std::ostringstream message;
  message << name << ": expected " << expected << ", found " << found;
  throw Error(message.str());
}

SamplerParams checked(SamplerParams p) {
  require(p.temperature >= 0 && std::isfinite(p.temperature), "temperature",
          "0 (always the likeliest token) or more", p.temperature);
  require(p.top_k >= 0, "top_k", "0 (off) or more", p.top_k);
  require(p.top_p > 0 && p.top_p <= 1, "top_p", "above 0, up to 1 (off)", p.top_p);
  require(p.min_p >= 0 && p.min_p <= 1, "min_p", "0 (off) to 1", p.min_p);
  require(p.repeat_penalty > 0 && std::isfinite(p.repeat_penalty), "repeat_penalty",
          "above 0, 1 being off", p.repeat_penalty);
  require(p.repeat_last_n >= -1, "repeat_last_n", "-1 (all), 0 (off) or more", p.repeat_last_n);
  require(std::isfinite(p.presence_penalty), "presence_penalty", "a finite number",
          p.presence_penalty);
  require(std::isfinite(p.frequency_penalty), "frequency_penalty", "a finite number",
          p.frequency_penalty);
  require(p.n_logprobs >= 0, "n_logprobs", "0 (off) or more", p.n_logprobs);
  for (const auto& [token, bias] : p.logit_bias) {
    require(token >= 0, "logit_bias", "tokens from 0", token);
    require(bias < std::numeric_limits<float>::infinity(), "logit_bias",
            "finite numbers, or -inf to forbid a token", bias);
  }
  return p;
}

// The likeliest after noise; kept tokens only, in any order.
class Race {
 public:
  explicit Race(double temperature) : temperature_(temperature) {}
  bool reachable(float logit, double noise_bound) const {
    return logit / temperature_ + noise_bound >= best_;
  }
  void enter(int32_t token, float logit, double noise) {
    const double score = logit / temperature_ + noise;
    if (score > best_ || (score == best_ && token < winner_)) {
      best_ = score;
      winner_ = token;
    }
  }
  int32_t winner() const { return winner_; }

 private:
  double temperature_;
  double best_ = -std::numeric_limits<double>::infinity();
  int32_t winner_ = std::numeric_limits<int32_t>::max();
};

// All tokens take part. A whole vocabulary of logarithms would take milliseconds, so the likeliest
// goes first and most others are dismissed by an upper bound of their noise.
int32_t draw_from_all(const Logits& logits, const Noise& noise, double temperature) {
  Race race(temperature);
  const int32_t likeliest = logits.argmax();
  race.enter(likeliest, logits.max(), noise.gumbel(likeliest));
  logits.for_blocks(
      [&](int64_t b) {
        return logits.block_max(b) > kNever && race.reachable(logits.block_max(b), Noise::kMost);
      },
      [&](int64_t begin, const float* x, int64_t n) {
        static_assert(Logits::kBlock % 2 == 0, "a pair of tokens shares its random bits");
        for (int64_t i = 0; i < n; i += 2) {
          const auto bits = noise.bits(static_cast<uint32_t>((begin + i) / 2));
          for (int64_t j = i; j < std::min(i + 2, n); ++j) {
            const uint64_t r = bits[static_cast<size_t>(j - i)];
            if (x[j] > kNever && race.reachable(x[j], Noise::bound(r)))
              race.enter(static_cast<int32_t>(begin + j), x[j], Noise::from_bits(r));
          }
        }
      });
  return race.winner();
}

uint64_t total_weight(const std::vector<Candidate>& candidates, float max) {
  uint64_t sum = 0;
  for (const Candidate& c : candidates) sum += Logits::weight(c.logit, max);
  return sum;
}

// Shortens to the likeliest tokens that together reach `target`; false where all of them do not.
bool cut_to_weight(std::vector<Candidate>& candidates, float max, uint64_t target) {
  if (total_weight(candidates, max) < target) return false;
  // Halving search without sorting: the tokens before `begin` weigh less than the target, those
  // before `end` reach it.
  auto begin = candidates.begin(), end = candidates.end();
  uint64_t before = 0;
  while (end - begin > 1) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end);
    uint64_t half = 0;
    for (auto c = begin; c != middle; ++c) half += Logits::weight(c->logit, max);
    if (before + half >= target) {
      end = middle;
    } else {
      before += half;
      begin = middle;
    }
  }
  candidates.erase(end, candidates.end());
  return true;
}

}  // namespace

Sampler::Sampler(SamplerParams params) : params_(checked(std::move(params))) {}

bool Sampler::penalizes() const {
  return params_.repeat_last_n != 0 &&
         (params_.repeat_penalty != 1.0f || params_.presence_penalty != 0 ||
          params_.frequency_penalty != 0);
}

void Sampler::accept(int32_t token) {
  require(token >= 0, "accept", "a token from 0", token);
  if (!penalizes()) return;
  history_.push_back(token);
  if (params_.repeat_last_n > 0 && history_.size() > static_cast<size_t>(params_.repeat_last_n))
    history_.pop_front();
}

Sampled Sampler::sample(std::span<const float> row, int64_t position, std::span<const int32_t> path,
                        TokenMask mask) const {
  require(!row.empty(), "logits", "at least one", row.size());
  std::vector<Candidate> changed = changes(row, path);
  const bool as_given = changed.empty() && mask.empty();
  const Logits logits(row, std::move(changed), mask);
  const int32_t token = draw(logits, position);
  return as_given ? report(logits, row, token) : report(row, token);
}

Sampled Sampler::report(std::span<const float> row, int32_t token) const {
  if (params_.n_logprobs == 0) return {.token = token, .top = {}};
  return report(Logits(row, {}), row, token);
}

Sampled Sampler::report(const Logits& given, std::span<const float> row, int32_t token) const {
  Sampled out{.token = token, .top = {}};
  if (params_.n_logprobs == 0) return out;
  const double log_sum = given.max() + portable::log(given.sum_exp());
  const auto logprob = [&](float logit) { return logit - log_sum; };
  out.logprob = logprob(row[static_cast<size_t>(token)]);
  for (const Candidate& c : given.top(params_.n_logprobs))
    out.top.emplace_back(c.token, logprob(c.logit));
  return out;
}

Distribution Sampler::distribution(std::span<const float> row, std::span<const int32_t> path,
                                   TokenMask mask) const {
  require(!row.empty(), "logits", "at least one", row.size());
  const Logits logits(row, changes(row, path), mask);
  if (params_.temperature == 0) return {{logits.argmax(), 1.0}};
  return softmax(takes_all(logits) ? logits.at_least(kNever) : truncate(logits), logits.max());
}

// By token, without those whose weight is too small for a double.
Distribution Sampler::softmax(std::span<const Candidate> kept, float max) const {
  const double temperature = params_.temperature == 0 ? 1 : params_.temperature;
  Distribution distribution;
  distribution.reserve(kept.size());
  for (const Candidate& c : kept)
    if (const double w = portable::exp((static_cast<double>(c.logit) - max) / temperature); w > 0)
      distribution.push_back({c.token, w});
  std::ranges::sort(distribution, {}, &Weighted::token);
  const double sum = total(distribution);
  for (Weighted& w : distribution) w.weight /= sum;
  return distribution;
}

Guesses Sampler::guess(std::span<const float> row, int64_t position, std::span<const int32_t> path,
                       int n, Purpose purpose) const {
  require(!row.empty(), "logits", "at least one", row.size());
  require(n >= 1, "guesses", "1 or more", n);
  const Logits logits(row, changes(row, path));
  const bool greedy = params_.temperature == 0;
  // Unlikelier tokens are no good guesses, whatever their noise.
  const auto most = static_cast<size_t>(std::max(n, 64));
  std::vector<Candidate> kept =
      greedy || takes_all(logits) ? logits.top(static_cast<int64_t>(most)) : truncate(logits);
  if (kept.size() > most) {
    std::nth_element(kept.begin(), kept.begin() + static_cast<ptrdiff_t>(most), kept.end());
    kept.resize(most);
  }
  Guesses out;
  Distribution distribution = softmax(kept, logits.max());
  const bool drawn = purpose == Purpose::Draft && !greedy;
  const Noise noise(params_.seed, params_.stream, position, purpose);
  struct Scored {
    double score, probability;
    int32_t token;
  };
  std::vector<Scored> scored;
  for (const Candidate& c : kept) {
    const double score =
        greedy ? c.logit : c.logit / double{params_.temperature} + noise.gumbel(c.token);
    const double probability = weight_of(distribution, c.token);
    // What the distribution does not hold cannot have been drawn from it.
    if (!drawn || probability > 0) scored.push_back({score, probability, c.token});
  }
  const auto count = std::min(scored.size(), static_cast<size_t>(n));
  std::partial_sort(scored.begin(), scored.begin() + static_cast<ptrdiff_t>(count), scored.end(),
                    [](const Scored& a, const Scored& b) {
                      return a.score != b.score ? a.score > b.score : a.token < b.token;
                    });
  for (const Scored& s : std::span(scored).first(count))
    out.tokens.push_back({s.token, static_cast<float>(s.probability)});
  if (drawn) out.distribution = std::move(distribution);
  return out;
}

std::vector<Candidate> Sampler::changes(std::span<const float> row,
                                        std::span<const int32_t> path) const {
  if (params_.logit_bias.empty() && !penalizes()) return {};
  struct Change {
    float bias = 0;
    int count = 0;
  };
  std::map<int32_t, Change> by_token;
  for (const auto& [token, bias] : params_.logit_bias) by_token[token].bias += bias;
  if (penalizes()) {
    const size_t all = history_.size() + path.size();
    const size_t n =
        params_.repeat_last_n < 0 ? all : std::min(all, static_cast<size_t>(params_.repeat_last_n));
    for (size_t i = all - n; i < all; ++i)
      ++by_token[i < history_.size() ? history_[i] : path[i - history_.size()]].count;
  }
  std::vector<Candidate> out;
  out.reserve(by_token.size());
  for (const auto& [token, change] : by_token) {
    // Logits names a token outside the row.
    float x = static_cast<size_t>(token) < row.size() ? row[static_cast<size_t>(token)] : 0.0f;
    x += change.bias;
    if (change.count > 0) {
      x = x > 0 ? x / params_.repeat_penalty : x * params_.repeat_penalty;
      x -= static_cast<float>(change.count) * params_.frequency_penalty + params_.presence_penalty;
    }
    out.push_back({x, token});
  }
  return out;
}

bool Sampler::takes_all(const Logits& logits) const {
  const bool top_k_off = params_.top_k == 0 || params_.top_k >= logits.size();
  return top_k_off && params_.top_p == 1.0f && params_.min_p == 0.0f;
}

int32_t Sampler::draw(const Logits& logits, int64_t position) const {
  if (params_.temperature == 0) return logits.argmax();
  const Noise noise(params_.seed, params_.stream, position);
  const double temperature = params_.temperature;
  if (takes_all(logits)) return draw_from_all(logits, noise, temperature);
  Race race(temperature);
  for (const Candidate& c : truncate(logits)) race.enter(c.token, c.logit, noise.gumbel(c.token));
  return race.winner();
}

// Both cuts keep a prefix of the tokens in order of likelihood, so the shorter one decides.
std::vector<Candidate> Sampler::truncate(const Logits& logits) const {
  const bool top_k_on = params_.top_k > 0 && params_.top_k < logits.size();
  // min-p is a distance from the likeliest, whatever else is kept. Compared in double; as a float
  // it is rounded down, which gathers at most one step too many.
  const double least = params_.min_p > 0 ? logits.max() + portable::log(params_.min_p) : kNever;
  const float gathered = std::nextafter(static_cast<float>(least), kNever);
  const auto target = [&](uint64_t total) {
    return static_cast<uint64_t>(std::ceil(params_.top_p * static_cast<double>(total)));
  };
  std::vector<Candidate> kept;
  if (top_k_on) {
    kept = logits.top(params_.top_k);
    if (params_.top_p < 1)
      cut_to_weight(kept, logits.max(), target(total_weight(kept, logits.max())));
  } else if (params_.top_p < 1) {
    // The likeliest within some distance usually weigh enough, and most of the vocabulary lies
    // below.
    const uint64_t enough = target(logits.total_weight());
    for (const float distance : {4.0f, 8.0f, 10.0f, 12.0f, 16.0f, -kNever}) {
      const float from = std::max(gathered, logits.max() - distance);
      kept = logits.at_least(from);
      if (cut_to_weight(kept, logits.max(), enough) || from == gathered) break;
    }
  } else {
    kept = logits.at_least(gathered);
  }
  std::erase_if(kept, [&](const Candidate& c) { return c.logit < least; });
  return kept;
}

}  // namespace pyflow
