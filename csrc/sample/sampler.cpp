#include "sample/sampler.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "sample/require.h"
#include "sample/stages/bans.h"
#include "sample/stages/dry.h"
#include "sample/stages/stages.h"

namespace pyflow {
namespace {

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
// goes first and most others are dismissed by an upper bound of their noise. first: the token that is
// the first one here.
int32_t draw_from_all(const Logits& logits, const Noise& noise, double temperature,
                      int64_t first = 0) {
  Race race(temperature);
  const auto likeliest = static_cast<int32_t>(first + logits.argmax());
  race.enter(likeliest, logits.max(), noise.gumbel(likeliest));
  logits.for_blocks(
      [&](int64_t b) {
        return logits.block_max(b) > kNever && race.reachable(logits.block_max(b), Noise::kMost);
      },
      [&](int64_t block, const float* x, int64_t n) {
        const int64_t begin = first + block;
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

// The same of some tokens, in any order.
int32_t draw_from(const std::vector<Candidate>& kept, const Noise& noise, double temperature) {
  Race race(temperature);
  const Candidate& likeliest = *std::min_element(kept.begin(), kept.end());
  race.enter(likeliest.token, likeliest.logit, noise.gumbel(likeliest.token));
  for (const Candidate& c : kept) {
    if (!race.reachable(c.logit, Noise::kMost)) continue;
    const uint64_t r = noise.bits(static_cast<uint32_t>(c.token) / 2)[c.token & 1];
    if (race.reachable(c.logit, Noise::bound(r))) race.enter(c.token, c.logit, Noise::from_bits(r));
  }
  return race.winner();
}

// By token, without those whose weight is too small for a double.
Distribution softmax(std::span<const Candidate> kept, float max, double temperature) {
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

// By min-p alone few tokens stay; if more do, all are needed.
constexpr int64_t kMostByMinP = 256;

int32_t likeliest_of(const std::vector<Candidate>& kept) {
  return std::min_element(kept.begin(), kept.end())->token;
}

void keep_likeliest(std::vector<Candidate>& kept, size_t most) {
  if (kept.size() <= most) return;
  std::nth_element(kept.begin(), kept.begin() + static_cast<ptrdiff_t>(most), kept.end());
  kept.resize(most);
}

}  // namespace

Sampler::Sampler(SamplerParams params)
    : params_(checked(std::move(params))),
      is_plain_(params_.is_plain()),
      n_looked_back_(params_.n_looked_back()),
      mu_(2 * double{params_.mirostat_tau}) {}

void Sampler::read(int32_t token) {
  require(token >= 0, "accept", "a token from 0", token);
  if (n_looked_back_ == 0) return;
  history_.push_back(token);
  const auto most = static_cast<size_t>(n_looked_back_);
  if (n_looked_back_ > 0 && history_.size() >= 2 * most)
    history_.erase(history_.begin(), history_.end() - n_looked_back_);
}

void Sampler::accept(const Sampled& drawn) {
  read(drawn.token);
  ++n_drawn_;
  if (needs_surprises()) mu_ = mu_after({&drawn.surprise, 1});
}

double Sampler::mu_after(std::span<const double> surprises) const {
  double mu = mu_;
  for (const double s : surprises)
    if (std::isfinite(s)) mu -= params_.mirostat_eta * (s - params_.mirostat_tau);
  return mu;
}

Sampled Sampler::sample(std::span<const float> row, const Place& place) const {
  std::vector<uint32_t> allowed;
  const Logits logits = changed(row, place, allowed);
  const Sampled drawn = draw(logits, place);
  Sampled out = logits.is_as_given() ? report(logits, row, drawn.token) : report(row, drawn.token);
  out.surprise = drawn.surprise;
  return out;
}

double Sampler::surprise(std::span<const float> row, const Place& place, int32_t token) const {
  std::vector<uint32_t> allowed;
  const Logits logits = changed(row, place, allowed);
  const double temperature = params_.temperature;
  return stages::surprise(logits, token, temperature, stages::log_sum(logits, temperature));
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

Distribution Sampler::distribution(std::span<const float> row, const Place& place) const {
  std::vector<uint32_t> allowed;
  const Logits logits = changed(row, place, allowed);
  if (params_.temperature == 0 || is_fsd(place)) return {{draw(logits, place).token, 1.0}};
  if (is_plain_ && takes_all(row.size()))
    return softmax(logits.at_least(kNever), logits.max(), params_.temperature);
  const Pool pool = this->pool(logits, place);
  if (pool.temperature == 0) return {{likeliest_of(pool.kept), 1.0}};
  return softmax(pool.kept, stages::max_of(pool.kept), pool.temperature);
}

Guesses Sampler::guess(std::span<const float> row, const Place& place, int n,
                       Purpose purpose) const {
  require(n >= 1, "guesses", "1 or more", n);
  std::vector<uint32_t> allowed;
  const Logits logits = changed(row, place, allowed);
  const bool by_fsd = is_fsd(place), greedy = by_fsd || params_.temperature == 0;
  // Unlikelier tokens are no good guesses, whatever their noise.
  const auto most = static_cast<size_t>(std::max(n, 64));
  Pool pool{{}, greedy ? 1.0 : params_.temperature, 0.0};
  if (by_fsd)
    pool.kept = stages::fsd(logits, text(place.path), params_);
  else if (greedy || (is_plain_ && takes_all(row.size())))
    pool.kept = logits.top(static_cast<int64_t>(most));
  else
    pool = this->pool(logits, place);
  keep_likeliest(pool.kept, most);
  Guesses out;
  const bool drawn = purpose == Purpose::Draft && !greedy && pool.temperature > 0;
  const double temperature = pool.temperature > 0 ? pool.temperature : 1.0;
  Distribution distribution = softmax(pool.kept, stages::max_of(pool.kept), temperature);
  const Noise noise(params_.seed, params_.stream, place.position, purpose);
  struct Scored {
    double score, probability;
    int32_t token;
  };
  std::vector<Scored> scored;
  for (const Candidate& c : pool.kept) {
    double score = c.logit;
    if (by_fsd)
      score = -static_cast<double>(scored.size());
    else if (!greedy && pool.temperature > 0)
      score = c.logit / pool.temperature + noise.gumbel(c.token);
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

TextView Sampler::text(std::span<const int32_t> path) const {
  return {history_, path, n_drawn_ + static_cast<int64_t>(path.size())};
}

Logits Sampler::changed(std::span<const float> row, const Place& place,
                        std::vector<uint32_t>& allowed) const {
  require(!row.empty(), "logits", "at least one", row.size());
  const TextView before = text(place.path);
  return {row, changes(row, before), mask(before, place, row.size(), allowed)};
}

TokenMask Sampler::mask(const TextView& before, const Place& place, size_t n,
                        std::vector<uint32_t>& allowed) const {
  const TokenMask mask = place.mask;
  if (!params_.banned_strings) return mask;
  allowed.assign((n + 31) / 32, mask.empty() ? ~uint32_t{0} : 0);
  std::copy_n(mask.begin(), std::min(mask.size(), allowed.size()), allowed.begin());
  params_.banned_strings->forbid(before, allowed);
  return allowed;
}

int64_t Sampler::n_deciding(int64_t n_vocab, bool whole) const {
  const SamplerParams& p = params_;
  if (p.n_logprobs > 0 || p.fsd != 0 || needs_surprises()) return kAllTokens;
  if (p.temperature == 0) return 1;
  if (p.top_n_sigma > 0) return kAllTokens;
  if (p.top_k > 0 && p.top_k < n_vocab) return p.top_k;
  if (!is_plain_ || p.top_p < 1) return kAllTokens;  // shares of the weight of all tokens
  if (p.min_p > 0) return kMostByMinP;
  return whole ? kAllTokens : 1;
}

bool Sampler::deciding(std::span<const float> row, int64_t first, int64_t end, const Place& place,
                       std::vector<Candidate>& out) const {
  const int64_t most = n_deciding(std::ssize(row), false);
  if (most == kAllTokens) return false;
  if (first >= end) return true;
  const TextView before = text(place.path);
  std::vector<uint32_t> allowed;
  TokenMask mask = this->mask(before, place, row.size(), allowed);
  if (!mask.empty()) {
    const auto word = static_cast<size_t>(first / 32);
    if (word >= mask.size()) return true;
    mask = mask.subspan(word);
  }
  std::vector<Candidate> changed;
  for (const Candidate& c : changes(row, before))
    if (c.token >= first && c.token < end)
      changed.push_back({c.logit, static_cast<int32_t>(c.token - first)});
  const auto logits = Logits::part(
      row.subspan(static_cast<size_t>(first), static_cast<size_t>(end - first)), changed, mask);
  if (!logits) return false;
  if (logits->max() == kNever) return true;
  const auto add = [&](int64_t token) {
    out.push_back({row[static_cast<size_t>(token)], static_cast<int32_t>(token)});
  };
  if (params_.temperature > 0 && is_plain_ && takes_all(row.size())) {
    const Noise noise(params_.seed, params_.stream, place.position);
    add(draw_from_all(*logits, noise, params_.temperature, first));
    return true;
  }
  // Of min-p alone: no less likely than it lets tokens be beside the likeliest here.
  const bool by_min_p = most == kMostByMinP && params_.temperature > 0 &&
                        !(params_.top_k > 0 && params_.top_k < std::ssize(row));
  const std::vector<Candidate> found =
      by_min_p ? stages::likeliest(*logits, params_) : logits->top(most);
  if (std::ssize(found) > most) return false;
  for (const Candidate& c : found) add(first + c.token);
  return true;
}

std::vector<Candidate> Sampler::changes(std::span<const float> row, const TextView& text) const {
  const bool penalizes = params_.penalizes(), uses_dry = params_.uses_dry();
  if (params_.logit_bias.empty() && !penalizes && !uses_dry) return {};
  struct Change {
    float bias = 0;
    int count = 0;
    double dry = 0;
  };
  std::map<int32_t, Change> by_token;
  for (const auto& [token, bias] : params_.logit_bias) by_token[token].bias += bias;
  if (penalizes)
    for (int64_t i = text.n_seen(params_.repeat_last_n); i-- > 0;) ++by_token[text.back(i)].count;
  if (uses_dry)
    for (const auto& [token, penalty] : stages::dry(text, params_)) by_token[token].dry = penalty;
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
    if (change.dry > 0 && x > kNever)  // a penalty of any size forbids nothing
      x = static_cast<float>(
          std::max(x - change.dry, double{std::numeric_limits<float>::lowest()}));
    out.push_back({x, token});
  }
  return out;
}

bool Sampler::takes_all(size_t n_vocab) const {
  const bool top_k_off = params_.top_k == 0 || params_.top_k >= static_cast<int64_t>(n_vocab);
  return top_k_off && params_.top_p == 1.0f && params_.min_p == 0.0f;
}

bool Sampler::is_fsd(const Place& place) const {
  if (params_.fsd == 0) return false;
  const Noise coins(params_.seed, params_.stream, place.position, Purpose::Stage);
  return !stages::fsd_samples(params_, text(place.path).n_drawn, coins);
}

Sampled Sampler::draw(const Logits& logits, const Place& place) const {
  Sampled out{.token = -1, .top = {}};
  const Noise noise(params_.seed, params_.stream, place.position);
  if (is_fsd(place)) {
    out.token = stages::fsd(logits, text(place.path), params_).front().token;
  } else if (params_.temperature == 0) {
    out.token = logits.argmax();
  } else if (is_plain_ && takes_all(static_cast<size_t>(logits.size()))) {
    out.token = draw_from_all(logits, noise, params_.temperature);
  } else {
    const Pool pool = this->pool(logits, place);
    out.token = pool.temperature == 0 ? likeliest_of(pool.kept)
                                      : draw_from(pool.kept, noise, pool.temperature);
    if (needs_surprises())
      out.surprise = stages::surprise(logits, out.token, pool.temperature, pool.log_sum);
  }
  return out;
}

Sampler::Pool Sampler::pool(const Logits& logits, const Place& place) const {
  if (is_plain_) return {stages::likeliest(logits, params_), params_.temperature, 0.0};
  if (params_.mirostat != 0) {
    const double temperature = params_.temperature, mu = mu_after(place.surprises);
    const double sum = stages::log_sum(logits, temperature);
    return {stages::mirostat(logits, params_.mirostat, temperature, mu, sum), temperature, sum};
  }
  const Noise coins(params_.seed, params_.stream, place.position, Purpose::Stage);
  std::vector<Candidate> kept = stages::chain(logits, params_, coins);
  const double temperature = stages::dynamic_temperature(kept, params_);
  return {std::move(kept), temperature, 0.0};
}

}  // namespace pyflow
