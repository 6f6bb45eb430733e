// From a row of logits to the next token.
//
// The stages and their order are llama.cpp's:
//   1. logit bias: added.
//   2. penalties over the last repeat_last_n tokens, prompt included: a logit above 0 is divided by
//      repeat_penalty, any other multiplied; then count * frequency_penalty + presence_penalty is
//      taken off.
//   3. top-k: the k likeliest stay.
//   4. top-p: of these the shortest prefix, likeliest first, whose probabilities reach top_p. They
//   are the
//      softmax over what stage 3 left, at temperature 1.
//   5. min-p: what has less than min_p times the likeliest's probability goes (again at temperature
//   1).
//   6. temperature, then the draw: argmax of logit / temperature + noise (noise.h).
// Temperature 0 takes the likeliest after stage 2. Equal logits rank by token, the lowest first.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <utility>
#include <vector>

#include "sample/law.h"
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
  // Of the token, by the softmax of the row as the model gave it; NaN unless n_logprobs > 0.
  float logprob = std::numeric_limits<float>::quiet_NaN();
  std::vector<std::pair<int32_t, float>> top;  // the n_logprobs likeliest and their logprobs
};

// What a drafter expects to be drawn.
struct Guess {
  int32_t token;
  float probability;  // among those that were candidates
};

struct Guesses {
  std::vector<Guess> tokens;
  Law law;  // what they were drawn from, if they were
};

class Sampler {
 public:
  // Throws Error for a parameter out of its range.
  explicit Sampler(SamplerParams params);

  // Draws the token for `position`. `path` holds tokens that lie between the accepted ones and that
  // position, where a draft is verified before it is accepted. Throws Error for broken logits.
  // May run in several threads at once, but not while accept() does.
  Sampled sample(std::span<const float> logits, int64_t position,
                 std::span<const int32_t> path = {}) const;

  // The distribution that sample() draws from, which is a certainty at temperature 0. Throws Error
  // for broken logits.
  Law law(std::span<const float> logits, std::span<const int32_t> path = {}) const;

  // What sample() tells about a token that something else has drawn from the row.
  Sampled report(std::span<const float> logits, int32_t token) const;

  // The n tokens that sample() would draw for `position`, were these the logits: what it draws,
  // what it would draw if that were forbidden, and so on. For Purpose::Sample their noise is
  // sample()'s, so another model's logits lead to the same token wherever the two models agree
  // well enough. For Purpose::Draft they are drawn by noise of their own, without replacement, from
  // `law`; at temperature 0 they are no draw, and the law is empty.
  Guesses guess(std::span<const float> logits, int64_t position, std::span<const int32_t> path,
                int n, Purpose purpose = Purpose::Sample) const;

  // Adds a token of the text, prompt or generated, to what penalties look back on.
  void accept(int32_t token);

  // Further draws take another stream of noise; the history stays.
  void set_stream(uint32_t stream) { params_.stream = stream; }

  const SamplerParams& params() const { return params_; }

 private:
  bool penalizes() const;
  bool takes_all(const Logits& logits) const;
  std::vector<Candidate> changes(std::span<const float> row, std::span<const int32_t> path) const;
  int32_t draw(const Logits& logits, int64_t position) const;
  std::vector<Candidate> truncate(const Logits& logits) const;
  Law softmax(std::span<const Candidate> kept, float max) const;
  Sampled report(const Logits& given, std::span<const float> row, int32_t token) const;

  SamplerParams params_;
  std::deque<int32_t> history_;  // oldest first
};

}  // namespace pyflow
