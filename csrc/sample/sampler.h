// From a row of logits to the next token, by llama.cpp's stages in its order:
//   0. a mask: what it forbids is minus infinity.
//   1. logit bias: added.
//   2. penalties over the last repeat_last_n tokens, prompt included: a logit above 0 is divided by
//      repeat_penalty, any other multiplied; then count * frequency_penalty + presence_penalty is
//      subtracted.
//   3. top-k: keep the k likeliest.
//   4. top-p: keep the shortest prefix, likeliest first, whose probabilities reach top_p: those of
//      the softmax over stage 3's tokens at temperature 1.
//   5. min-p: drop tokens of less than min_p times the likeliest's probability, at temperature 1.
//   6. temperature, then the draw: argmax of logit / temperature + noise (noise.h).
// Temperature 0 takes the likeliest after stage 2. Of equal logits the lower token ranks first.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "sample/distribution.h"
#include "sample/logits.h"
#include "sample/noise.h"

namespace pyflow {

struct SamplerParams {
  float temperature = 0.8f;     // 0: greedy
  int top_k = 40;               // 0: off
  float top_p = 0.95f;          // 1: off
  float min_p = 0.05f;          // 0: off
  float repeat_penalty = 1.0f;  // 1: off
  int repeat_last_n = 64;       // tokens that all penalties look back; 0: off, -1: all
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  std::vector<std::pair<int32_t, float>> logit_bias;  // -inf forbids a token
  uint64_t seed = 0;
  uint32_t stream = 0;
  int n_logprobs = 0;  // how many of the likeliest tokens to report
};

struct Sampled {
  int32_t token = -1;
  // Of the token, by the softmax of the model's own row; NaN unless n_logprobs > 0.
  double logprob = std::numeric_limits<double>::quiet_NaN();
  std::vector<std::pair<int32_t, double>> top;  // the n_logprobs likeliest and their logprobs
};

// A token that a drafter expects to be drawn.
struct Guess {
  int32_t token;
  float probability;  // among the candidates
};

struct Guesses {
  std::vector<Guess> tokens;
  Distribution distribution;  // what they were drawn from, if they were
};

class Sampler {
 public:
  // Throws Error for a parameter out of its range.
  explicit Sampler(SamplerParams params);

  // Draws the token for `position`. `path`: tokens between the accepted ones and that position,
  // when a draft is verified before it is accepted. Throws Error for broken logits. Several threads
  // may call it at once, but not during accept().
  Sampled sample(std::span<const float> logits, int64_t position,
                 std::span<const int32_t> path = {}, TokenMask mask = {}) const;

  // The distribution that sample() draws from: at temperature 0 a single token. Throws Error for
  // broken logits.
  Distribution distribution(std::span<const float> logits, std::span<const int32_t> path = {},
                            TokenMask mask = {}) const;

  // The result of sample() for a token that was drawn elsewhere from the row.
  Sampled report(std::span<const float> logits, int32_t token) const;

  // The first n tokens that sample() would draw for `position` from these logits: the drawn one,
  // the one drawn if that were forbidden, and so on. Purpose::Sample uses the noise of sample(), so
  // another model's logits lead to the same token wherever the models agree well enough.
  // Purpose::Draft draws without replacement from `distribution`, by noise of its own; at
  // temperature 0 nothing is drawn, and the distribution is empty.
  Guesses guess(std::span<const float> logits, int64_t position, std::span<const int32_t> path,
                int n, Purpose purpose = Purpose::Sample) const;

  // Adds a token, of the prompt or generated, to the history that penalties use.
  void accept(int32_t token);

  // Switches to another stream of noise; the history stays.
  void set_stream(uint32_t stream) { params_.stream = stream; }

  const SamplerParams& params() const { return params_; }

 private:
  bool penalizes() const;
  bool takes_all(const Logits& logits) const;
  std::vector<Candidate> changes(std::span<const float> row, std::span<const int32_t> path) const;
  int32_t draw(const Logits& logits, int64_t position) const;
  std::vector<Candidate> truncate(const Logits& logits) const;
  Distribution softmax(std::span<const Candidate> kept, float max) const;
  Sampled report(const Logits& given, std::span<const float> row, int32_t token) const;

  SamplerParams params_;
  std::deque<int32_t> history_;  // oldest first
};

}  // namespace pyflow
