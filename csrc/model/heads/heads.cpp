#include "model/heads/heads.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "core/errors.h"
#include "model/blocks/linear.h"

namespace pyflow {
namespace {

constexpr float kInputEps = 1e-6f;  // of scale_input
constexpr size_t kMostHeads = 64;
// Logits that are held at once: 4 MiB.
constexpr int64_t kLogitsAtOnce = int64_t{1} << 20;

void check_range(const char* name, int64_t value, int64_t most) {
  if (value < 1 || value > most)
    throw ShapeError("speculator: " + std::string(name) + ": expected 1 to " +
                     std::to_string(most) + ", found " + std::to_string(value));
}

const PackedTensor* head_on_host(const Stage& stage) {
  return stage.head_home() == kHost ? stage.head().weight : nullptr;
}

// Of the model, in the host's memory; null: not there. Members of a group have some rows of both.
const PackedTensor* table(const Stage& base, const Stage* tables, bool tied, bool embedding) {
  for (const Stage* stage : {&base, tables}) {
    if (!stage || !stage->spec().member.alone()) continue;
    const PackedTensor *first = stage->embedding(), *second = head_on_host(*stage);
    if (!embedding) std::swap(first, second);
    if (first) return first;
    if (tied && second) return second;
  }
  return nullptr;
}

}  // namespace

Heads::Heads(HeadsSpec spec, TensorSource source, std::shared_ptr<const Stage> base,
             std::shared_ptr<const Stage> tables, std::optional<DType> pack_as,
             const std::function<void()>& poll)
    : spec_(std::move(spec)),
      base_(std::move(base)),
      tables_(std::move(tables)),
      embedding_(table(*base_, tables_.get(), spec_.tied, true)),
      weights_(std::move(source), pack_as, base_->kernels()) {
  if (spec_.n_embd != base_->spec().n_embd)
    throw ShapeError("speculator: expected hidden rows of " + std::to_string(base_->spec().n_embd) +
                     ", as the model has, found " + std::to_string(spec_.n_embd));
  check_range("inner size", spec_.n_inner, int64_t{1} << 20);
  if (spec_.heads.empty() || spec_.heads.size() > kMostHeads)
    throw ShapeError("speculator: expected 1 to " + std::to_string(kMostHeads) + " heads, found " +
                     std::to_string(spec_.heads.size()));
  n_guessed_ = spec_.vocabulary.empty() ? base_->spec().n_vocab : std::ssize(spec_.vocabulary);
  for (const BlockSpec& head : spec_.heads)
    heads_.push_back(bind(head, heads_.empty() ? nullptr : &heads_[0]));
  weights_.pack(base_->pool(), poll, nullptr);
  if (std::ranges::any_of(heads_, [](const Head& head) { return !head.weight; }))
    base_head_ = std::make_unique<BaseHead>(base_->last() || !tables_ ? base_ : tables_,
                                            table(*base_, tables_.get(), spec_.tied, false),
                                            spec_.vocabulary);
  allocate();
}

Heads::Head Heads::bind(const BlockSpec& spec, const Head* first) {
  const int64_t d = spec_.n_embd, inner = spec_.n_inner;
  const auto matrix = [&](const char* name, int64_t rows, int64_t cols) -> const PackedTensor* {
    const auto ref = spec.tensor_or_none(name);
    return ref ? &weights_.matrix(*ref, rows, cols) : nullptr;
  };
  Head head;
  head.projection = matrix("projection", inner, first ? inner : d);
  if (first && !first->projection != !head.projection)
    throw ShapeError("speculator: expected a projection in all heads or in none");
  const int64_t width = head.projection ? inner : d;
  if (head.projection) {
    head.tokens = matrix("tokens", base_->spec().n_vocab, inner);
    head.token_projection = matrix("token_projection", inner, d);
    if (!head.tokens == !head.token_projection)
      throw ShapeError("speculator: expected a table of tokens or a token projection");
    if (head.token_projection && !embedding_)
      throw UnsupportedError(
          "speculator: expected the model's embedding in this process, found it on another rank");
    head.token_scale = spec.number("token_scale");
    head.norm_bias = weights_.vector(spec.tensor("norm_bias"), inner);
  }
  if (head.projection || spec.has("norm")) {
    head.norm = weights_.vector(spec.tensor("norm"), width);
    head.eps = spec.number("eps");
  }
  if (spec.has("residuals")) {
    const auto weights = spec.tensors("residuals"), biases = spec.tensors("residual_biases");
    if (weights.size() != biases.size())
      throw ShapeError("speculator: expected a bias for each residual layer");
    for (size_t i = 0; i < weights.size(); ++i)
      head.residuals.push_back(
          {&weights_.matrix(weights[i], width, width), weights_.vector(biases[i], width)});
  }
  head.weight = matrix("head", n_guessed_, width);
  if (head.weight) return head;
  head.output = matrix("output", d, width);
  head.gain = weights_.vector_or_null(spec.tensor_or_none("gain"), d);
  if (!head.output && width != d)
    throw ShapeError("speculator: expected states of " + std::to_string(d) +
                     " for the model's head, found " + std::to_string(width));
  return head;
}

void Heads::allocate() {
  const int64_t rows = kMostNodes, d = spec_.n_embd, inner = spec_.n_inner;
  bool fine = base_head_ && fine_inputs(base_head_->weight().dtype());
  weights_.for_matrices(
      [&](const TensorRef&, const PackedTensor& w) { fine = fine || fine_inputs(w.dtype()); });
  stride_ = padded(std::max(d, inner));
  logits_stride_ = padded(n_guessed_);
  acts_per_row_ = act_blocks(stride_);
  kernel_nbytes_ = (base_->kernels().scratch_nbytes + 63) / 64 * 64;
  size_t at = 0;
  const auto take = [&](int64_t n, size_t size) {
    return std::exchange(at, at + (static_cast<size_t>(n) * size + 63) / 64 * 64);
  };
  const size_t states = take((1 + n_heads()) * rows * stride_, sizeof(float)),
               x = take(rows * stride_, sizeof(float)), y = take(rows * stride_, sizeof(float)),
               tokens = take(rows * stride_, sizeof(float)),
               logits = take(logits_at_once() * logits_stride_, sizeof(float)),
               acts = take(rows * acts_per_row_, sizeof(ActBlock)),
               pairs = take(fine ? 2 * rows * acts_per_row_ : 0, sizeof(ActBlock)),
               kernels = take(kernel_nbytes_ * base_->pool().size(), 1);
  memory_ = Buffer(at, "speculator");
  const auto floats = [&](size_t offset) {
    return reinterpret_cast<float*>(memory_.data() + offset);
  };
  states_ = floats(states);
  x_ = floats(x);
  y_ = floats(y);
  tokens_ = floats(tokens);
  logits_ = floats(logits);
  acts_ = reinterpret_cast<ActBlock*>(memory_.data() + acts);
  pairs_ = fine ? reinterpret_cast<ActBlock*>(memory_.data() + pairs) : nullptr;
  kernel_scratch_ = memory_.data() + kernels;
}

int64_t Heads::logits_at_once() const {
  return std::clamp<int64_t>(kLogitsAtOnce / padded(n_guessed_), 1, kMostNodes);
}

std::vector<GuessTree> Heads::draft(std::span<const float> hidden, std::span<const int32_t> roots,
                                    const GuessLimits& limits) {
  check(hidden, roots.size(), roots);
  check_range("nodes", limits.n_nodes, kMostNodes);
  check_range("depth", limits.depth, int64_t{1} << 30);
  check_range("width", limits.width, kMostGuesses);
  GuessLimits within = limits;
  within.depth = std::min(limits.depth, n_heads());
  std::vector<GrowingTree> trees;
  for (const int32_t root : roots) trees.emplace_back(root, within);
  const std::lock_guard guard(busy_);
  const auto d = static_cast<size_t>(spec_.n_embd);
  const auto at_once = static_cast<size_t>(kMostNodes / limits.n_nodes);
  for (size_t i = 0; i < trees.size(); i += at_once) {
    const size_t n = std::min(at_once, trees.size() - i);
    draft_few(hidden.subspan(i * d, n * d), std::span(trees).subspan(i, n));
  }
  std::vector<GuessTree> grown;
  for (const GrowingTree& tree : trees) grown.push_back(tree.tree());
  return grown;
}

// At most kMostNodes nodes in all.
void Heads::draft_few(std::span<const float> hidden, std::span<GrowingTree> trees) {
  begin(hidden);
  auto n_states = std::ssize(trees);
  // By tree: the states of its root and of the nodes that have been extended.
  std::vector<std::vector<int64_t>> states(trees.size());
  for (size_t level = 0; level < heads_.size(); ++level) {
    const bool sees_tokens = heads_[level].projection != nullptr;
    std::vector<Row> rows;
    std::vector<size_t> first;  // row of each tree
    for (size_t t = 0; t < trees.size(); ++t) {
      first.push_back(rows.size());
      const auto wanted = trees[t].wanted();
      for (const Extended& node :
           wanted.first(sees_tokens ? wanted.size() : std::min<size_t>(1, wanted.size()))) {
        const bool is_root = !sees_tokens || node.number < 0;
        const int64_t from =
            is_root ? static_cast<int64_t>(t) : states[t][static_cast<size_t>(node.parent + 1)];
        states[t].push_back(n_states + std::ssize(rows));
        rows.push_back({from, node.token});
      }
    }
    if (rows.empty()) return;
    first.push_back(rows.size());
    std::vector<std::vector<Guess>> guesses(rows.size());
    const int64_t n = trees[0].n_guesses();
    run(level, rows, n_states, [&](int64_t row, const float* logits) {
      guesses[static_cast<size_t>(row)] =
          likeliest({logits, static_cast<size_t>(n_guessed_)},
                    base_->kernels().log_sum_exp(logits, n_guessed_), n);
    });
    n_states += std::ssize(rows);
    if (!spec_.vocabulary.empty())
      for (auto& list : guesses)
        for (Guess& guess : list) guess.token = spec_.vocabulary[static_cast<size_t>(guess.token)];
    for (size_t t = 0; t < trees.size(); ++t)
      if (first[t] < first[t + 1])
        trees[t].take(std::span(guesses).subspan(first[t], first[t + 1] - first[t]));
  }
}

void Heads::logits(std::span<const float> hidden, std::span<const int32_t> tokens, float* out) {
  check(hidden, 1, tokens);
  check_range("tokens", std::ssize(tokens), n_heads());
  const std::lock_guard guard(busy_);
  begin(hidden);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool sees_tokens = heads_[i].projection != nullptr;
    const auto at = static_cast<int64_t>(i);
    run(i, std::array{Row{sees_tokens ? at : 0, tokens[i]}}, at + 1,
        [&](int64_t, const float* logits) {
          std::copy_n(logits, n_guessed_, out + at * n_guessed_);
        });
  }
}

void Heads::check(std::span<const float> hidden, size_t n, std::span<const int32_t> tokens) const {
  if (const size_t expected = n * static_cast<size_t>(spec_.n_embd); hidden.size() != expected)
    throw ShapeError("speculator: hidden rows: expected " + std::to_string(expected) +
                     " floats, found " + std::to_string(hidden.size()));
  for (const int32_t token : tokens)
    if (token < 0 || token >= base_->spec().n_vocab)
      throw ShapeError("speculator: token " + std::to_string(token) + ": expected 0 to " +
                       std::to_string(base_->spec().n_vocab - 1));
}

void Heads::begin(std::span<const float> hidden) {
  const int64_t d = spec_.n_embd, n = std::ssize(hidden) / d;
  const std::vector<float> weight(static_cast<size_t>(d), static_cast<float>(1 / std::sqrt(2.0)));
  for (int64_t i = 0; i < n; ++i) {
    std::copy_n(hidden.data() + i * d, d, state(i));
    if (spec_.scale_input)
      base_->kernels().rms_norm(state(i), weight.data(), kInputEps, d, state(i));
  }
}

Step Heads::step(const Team& team) const {
  StepMemory memory{};
  memory.stride = stride_;
  memory.acts = acts_;
  memory.pairs = pairs_;
  memory.kernel_scratch = kernel_scratch_ + kernel_nbytes_ * team.rank();
  return {StepRows{}, memory, base_->kernels(), team.copy(), nullptr, nullptr, {}};
}

void Heads::run(size_t i, std::span<const Row> rows, int64_t to, const AfterRow& after) {
  const Head& head = heads_[i];
  const auto n = static_cast<int64_t>(rows.size());
  base_->pool().run([&](Team& team) {
    Step s = step(team);
    update(head, s, team, rows, to);
    refine(head, s, team, n);
    score(head, s, team, n, after);
  });
}

// Leaves the new states in y_.
void Heads::update(const Head& head, Step& s, Team& team, std::span<const Row> rows, int64_t to) {
  const auto n = static_cast<int64_t>(rows.size());
  const int64_t inner = spec_.n_inner;
  float* taken = head.projection ? x_ : y_;
  each_row(s, team, n, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const Row& row = rows[static_cast<size_t>(r)];
      std::copy_n(state(row.state), stride_, taken + r * stride_);
      if (!head.projection) {
        float* y = y_ + r * stride_;
        if (head.norm) s.kernels.rms_norm(y, head.norm, head.eps, spec_.n_embd, y);
        continue;
      }
      const PackedTensor& table = head.tokens ? *head.tokens : *embedding_;
      float* token = tokens_ + r * stride_;
      table.dequantize_row(row.token, token, s.copy);
      s.kernels.scale(token, head.token_scale, table.cols());
    }
  });
  if (!head.projection) return;
  multiply(s, team, std::array{Product{head.projection, y_, stride_}}, {x_, stride_, n});
  const float* token = tokens_;
  if (head.token_projection) {
    multiply(s, team, std::array{Product{head.token_projection, x_, stride_}},
             {tokens_, stride_, n});
    token = x_;
  }
  each_row(s, team, n, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* y = y_ + r * stride_;
      s.kernels.add(y, token + r * stride_, inner);
      s.kernels.rms_norm(y, head.norm, head.eps, inner, y);
      s.kernels.add(y, head.norm_bias, inner);
      s.kernels.activate(Activation::Gelu, y, inner);
      std::copy_n(y, inner, state(to + r));
    }
  });
}

void Heads::refine(const Head& head, Step& s, Team& team, int64_t n) {
  for (const Residual& residual : head.residuals) {
    const int64_t width = residual.weight->rows();
    multiply(s, team, Product{residual.weight, x_, stride_}, residual.bias, {y_, stride_, n});
    each_row(s, team, n, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        s.kernels.activate(Activation::Silu, x_ + r * stride_, width);
        s.kernels.add(y_ + r * stride_, x_ + r * stride_, width);
      }
    });
  }
}

void Heads::score(const Head& head, Step& s, Team& team, int64_t n, const AfterRow& after) {
  float* in = y_;
  if (head.output) {
    const auto gain = [&](int64_t row, int64_t column, int64_t columns) {
      float* x = x_ + row * stride_ + column;
      for (int64_t c = 0; head.gain && c < columns; ++c) x[c] *= head.gain[column + c];
    };
    multiply(s, team, std::array{Product{head.output, x_, stride_}}, {y_, stride_, n},
             std::cref(gain));
    in = x_;
  }
  const auto finish = [&](int64_t row, int64_t column, int64_t columns) {
    if (!head.weight) base_head_->finish(logits_ + row * logits_stride_ + column, column, columns);
  };
  const PackedTensor& weight = head.weight ? *head.weight : base_head_->weight();
  const int64_t at_once = logits_at_once();
  for (int64_t first = 0; first < n; first += at_once) {
    const int64_t count = std::min(at_once, n - first);
    multiply(s, team, std::array{Product{&weight, logits_, logits_stride_}},
             {in + first * stride_, stride_, count}, std::cref(finish));
    team.for_each(count, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) after(first + r, logits_ + r * logits_stride_);
    });
  }
}

}  // namespace pyflow
