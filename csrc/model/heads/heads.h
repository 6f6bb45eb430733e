// Speculators' heads: small networks that guess the next tokens from the hidden row of the last one
// that the model has computed. A stage without cells: MLP speculators (paper 002, section 3) and
// Medusa's heads.
//
// Head i guesses the token i + 1 places after the root, the newest token, in three parts. All are
// optional but the last, and rms(x) = x / sqrt(mean(x^2) + eps):
//   state   = gelu(norm * rms(projection state + token) + norm_bias)
//             of the state that the head before left and of the token that it guessed; token is a
//             row of the table `tokens` times token_scale, or `token_projection` times the model's
//             embedding times token_scale
//   then    x = state; x = x + silu(residual x + residual_bias), one after the other
//   logits  = head x, or the rows of the model's head over gain * (output x)
// Without projection all heads start from the hidden row, or from norm * rms(hidden), and see no
// token. The eps of rms is a parameter.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "model/heads/base_head.h"
#include "model/heads/guess_tree.h"
#include "model/spec.h"
#include "model/stage.h"
#include "model/weights.h"

namespace pyflow {

struct HeadsSpec {
  int64_t n_embd = 0;               // of hidden rows
  int64_t n_inner = 0;              // of states
  bool scale_input = false;         // the first state is rms(hidden) / sqrt(2)
  bool tied = false;                // the model's head is its embedding
  std::vector<int32_t> vocabulary;  // what heads guess, ascending; empty: all of the model's tokens
  std::vector<BlockSpec> heads;     // parameters as above
};

class Heads {
 public:
  // Nodes of a draft at most; so many rows go through a head together.
  static constexpr int64_t kMostNodes = kMostGuesses;

  // Binds, checks and packs the weights, float matrices as pack_as if given. tables: a stage that
  // has the model's embedding or head in the host's memory where the base has not, or has some rows
  // as a member of a group; or null.
  // Throws what Stage and BaseHead throw, ShapeError for heads that do not fit the model.
  Heads(HeadsSpec spec, TensorSource source, std::shared_ptr<const Stage> base,
        std::shared_ptr<const Stage> tables, std::optional<DType> pack_as,
        const std::function<void()>& poll);

  int64_t n_heads() const { return static_cast<int64_t>(heads_.size()); }
  int64_t n_guessed() const { return n_guessed_; }  // tokens that heads choose from
  size_t nbytes() const { return weights_.nbytes(1) + (base_head_ ? base_head_->nbytes() : 0); }

  // A tree below each root: a token drawn from its hidden row, n_embd floats, the input of the
  // model's head. All trees grow together, so weights are read once per level; each is as if it
  // were alone. Throws ShapeError for numbers out of range. One caller at a time; others wait.
  std::vector<GuessTree> draft(std::span<const float> hidden, std::span<const int32_t> roots,
                               const GuessLimits& limits);

  // Logits of all heads along a text: out[i] is n_guessed floats for tokens[i], the first of which
  // is the root.
  void logits(std::span<const float> hidden, std::span<const int32_t> tokens, float* out);

 private:
  struct Residual {
    const PackedTensor* weight;
    const float* bias;
  };
  struct Head {
    const PackedTensor *projection = nullptr, *tokens = nullptr, *token_projection = nullptr;
    float token_scale = 1;
    const float *norm = nullptr, *norm_bias = nullptr;
    float eps = 0;
    std::vector<Residual> residuals;
    const PackedTensor* output = nullptr;
    const float* gain = nullptr;
    const PackedTensor* weight = nullptr;  // null: the model's
  };
  struct Row {
    int64_t state;  // which state it takes
    int32_t token;
  };
  using AfterRow = std::function<void(int64_t row, const float* logits)>;

  Head bind(const BlockSpec& spec, const Head* first);
  void allocate();
  void check(std::span<const float> hidden, size_t n, std::span<const int32_t> tokens) const;
  void begin(std::span<const float> hidden);  // into the first states, a row each
  void draft_few(std::span<const float> hidden, std::span<GrowingTree> trees);
  Step step(const Team& team) const;
  // Runs head i over rows; their states become numbers [to, to + n). after(row) sees each row's
  // logits, by any thread.
  void run(size_t i, std::span<const Row> rows, int64_t to, const AfterRow& after);
  void update(const Head& head, Step& step, Team& team, std::span<const Row> rows, int64_t to);
  void refine(const Head& head, Step& step, Team& team, int64_t n);
  void score(const Head& head, Step& step, Team& team, int64_t n, const AfterRow& after);
  int64_t logits_at_once() const;
  float* state(int64_t i) const { return states_ + i * stride_; }

  HeadsSpec spec_;
  std::shared_ptr<const Stage> base_, tables_;
  const PackedTensor* embedding_;  // null: none here
  Weights weights_;
  std::vector<Head> heads_;
  std::unique_ptr<BaseHead> base_head_;  // if a head has no own
  int64_t n_guessed_ = 0, stride_ = 0, logits_stride_ = 0, acts_per_row_ = 0;

  std::mutex busy_;
  Buffer memory_;
  float *states_ = nullptr, *x_ = nullptr, *y_ = nullptr, *tokens_ = nullptr, *logits_ = nullptr;
  ActBlock *acts_ = nullptr, *pairs_ = nullptr;
  uint8_t* kernel_scratch_ = nullptr;
  int64_t kernel_nbytes_ = 0;
};

}  // namespace pyflow
