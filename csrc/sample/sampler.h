// From a row of logits to the next token, by llama.cpp's stages in its order:
//   0. masks, of a grammar and of banned strings: what they forbid is minus infinity.
//   1. logit bias: added.
//   2. penalties over the last repeat_last_n tokens, prompt included: a logit above 0 is divided by
//      repeat_penalty, any other multiplied; then count * frequency_penalty + presence_penalty is
//      subtracted. Then DRY (stages/dry.h).
//   3. top-n-sigma, top-k, tail-free, typical, top-p, min-p, XTC (stages/stages.h): each keeps some of
//      the tokens that the one before left, by the softmax of those at temperature 1.
//   4. temperature, which dynatemp_range makes depend on the entropy, then the draw: argmax of
//      logit / temperature + noise (noise.h).
// Temperature 0 takes the likeliest after stage 2. Of equal logits the lower token ranks first.
// Mirostat replaces stage 3 and comes after the temperature; FSD replaces stages 3 and 4.
//
// Whatever a draw depends on is a function of the text, its position and the seed, or is given with
// the path: so drafts, batches and texts that begin again change no token.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "sample/distribution.h"
#include "sample/logits.h"
#include "sample/noise.h"
#include "sample/params.h"
#include "sample/text_view.h"

namespace pyflow {

struct Sampled {
  int32_t token = -1;
  // Of the token, by the softmax of the model's own row; NaN unless n_logprobs > 0.
  double logprob = std::numeric_limits<double>::quiet_NaN();
  // -log2 of its probability among all tokens at the temperature; NaN without mirostat.
  double surprise = std::numeric_limits<double>::quiet_NaN();
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

// Where a draw takes place.
struct Place {
  int64_t position = 0;
  // Tokens between the accepted ones and the position, when a draft is verified before it is
  // accepted.
  std::span<const int32_t> path = {};
  TokenMask mask = {};
  // With mirostat: those of the path's tokens, as far as they are known.
  std::span<const double> surprises = {};
};

inline constexpr int64_t kAllTokens = -1;

class Sampler {
 public:
  // Throws Error for a parameter out of its range.
  explicit Sampler(SamplerParams params);

  // Draws a token. Throws Error for broken logits. Several threads may call it at once, but not
  // during accept().
  Sampled sample(std::span<const float> logits, const Place& place) const;

  // When several places have parts of a row: how many tokens of a part can decide what sample()
  // draws, or with `whole` what distribution() says, at most; kAllTokens: all.
  int64_t n_deciding(int64_t n_vocab, bool whole) const;
  // Adds those of row[first, end), as the row has them; a row with these of all parts, and -inf
  // elsewhere, gives the same results. `first` is a multiple of Logits::kBlock, and nothing else of
  // the row counts. False: all tokens are needed after all.
  bool deciding(std::span<const float> row, int64_t first, int64_t end, const Place& place,
                std::vector<Candidate>& out) const;

  // The distribution that sample() draws from: at temperature 0 and for FSD a single token. Throws
  // Error for broken logits.
  Distribution distribution(std::span<const float> logits, const Place& place) const;

  // The result of sample() for a token that was drawn elsewhere from the row.
  Sampled report(std::span<const float> logits, int32_t token) const;

  // Whether a draw needs the surprises of its path, and so those of earlier rows.
  bool needs_surprises() const { return params_.mirostat != 0 && params_.temperature > 0; }
  double surprise(std::span<const float> logits, const Place& place, int32_t token) const;

  // The first n tokens that sample() would draw at a place from these logits: the drawn one, the one
  // drawn if that were forbidden, and so on. Purpose::Sample uses the noise of sample(), so another
  // model's logits lead to the same token wherever the models agree well enough. Purpose::Draft
  // draws without replacement from `distribution`, by noise of its own; at temperature 0 nothing is
  // drawn, and the distribution is empty. The place's mask is not used.
  Guesses guess(std::span<const float> logits, const Place& place, int n,
                Purpose purpose = Purpose::Sample) const;

  // Adds a token of the prompt.
  void read(int32_t token);
  // Adds a drawn one.
  void accept(const Sampled& drawn);

  // Switches to another stream of noise; the text stays.
  void set_stream(uint32_t stream) { params_.stream = stream; }

  // The most surprise that mirostat lets the next token have, in bits: 2 tau at first.
  double mu() const { return mu_; }
  void set_mu(double mu) { mu_ = mu; }

  const SamplerParams& params() const { return params_; }

 private:
  // The candidates of a draw, and its temperature.
  struct Pool {
    std::vector<Candidate> kept;
    double temperature;
    double log_sum;  // with mirostat
  };

  bool takes_all(size_t n_vocab) const;
  TextView text(std::span<const int32_t> path) const;
  // What may be drawn of n tokens; `allowed`: memory for that.
  TokenMask mask(const TextView& before, const Place& place, size_t n,
                 std::vector<uint32_t>& allowed) const;
  Logits changed(std::span<const float> row, const Place& place,
                 std::vector<uint32_t>& allowed) const;
  std::vector<Candidate> changes(std::span<const float> row, const TextView& text) const;
  // Whether FSD chooses at a place.
  bool is_fsd(const Place& place) const;
  // Without what is reported.
  Sampled draw(const Logits& logits, const Place& place) const;
  Pool pool(const Logits& logits, const Place& place) const;
  double mu_after(std::span<const double> surprises) const;
  Sampled report(const Logits& given, std::span<const float> row, int32_t token) const;

  SamplerParams params_;
  bool is_plain_;
  int64_t n_looked_back_;
  std::vector<int32_t> history_;  // oldest first; at least the last n_looked_back_ tokens
  int64_t n_drawn_ = 0;
  double mu_;
};

}  // namespace pyflow
