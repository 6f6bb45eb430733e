#include "model/stage.h"

#include <algorithm>
#include <array>

#include "model/blocks/linear.h"

namespace pyflow {

Stage::Stage(StageSpec spec, TensorSource source, std::shared_ptr<ThreadPool> pool,
             const KernelTable& kernels, std::optional<DType> pack_as, bool load,
             const std::function<void()>& poll)
    : spec_(std::move(spec)),
      kernels_(kernels),
      pool_(std::move(pool)),
      weights_(std::move(source), pack_as, kernels) {
  const int64_t n_embd = spec_.n_embd;
  if (n_embd < 1 || (spec_.n_vocab < 1 && (spec_.embedding || spec_.head)))
    throw ShapeError("model: embedding of " + std::to_string(spec_.n_vocab) + " x " +
                     std::to_string(n_embd) + " is empty");
  if (spec_.embedding) {
    embedding_ = &weights_.matrix(spec_.embedding->tensor("weight"), spec_.n_vocab, n_embd);
    facts_.occasional.insert(embedding_);
    embedding_scale_ = spec_.embedding->number("scale");
  }
  for (const RopeSpec& rope : spec_.ropes)
    if (!rope.long_inv_freq.empty() && rope.long_inv_freq.size() != rope.pairs())
      throw ShapeError("rope: expected as many frequencies for long contexts as for others, " +
                       std::to_string(rope.pairs()) + ", found " +
                       std::to_string(rope.long_inv_freq.size()));
  BlockContext context{spec_, weights_, facts_, embedding_ != nullptr};
  for (const auto& layer : spec_.layers) {
    layers_.emplace_back();
    for (const BlockSpec& block : layer) {
      layers_.back().push_back(make_block(block, context));
      context.is_first = false;
      for (const char* name : {"input", "output"})
        if (block.has(name)) needs_.at_least({.n_registers = register_index(block.text(name)) + 1});
    }
  }
  if (spec_.head) {
    const BlockSpec& head = *spec_.head;
    head_norm_ = RowNorm(weights_, head.text("norm_type"), head.number("eps"),
                         head.tensor_or_none("norm"), head.tensor_or_none("norm_bias"), n_embd);
    head_ = &weights_.matrix(head.tensor("weight"), spec_.n_vocab, n_embd);
    head_bias_ = weights_.vector_or_null(head.tensor_or_none("bias"), spec_.n_vocab);
    head_scale_ = head.number("scale");
    head_softcap_ = head.number("softcap");
    facts_.occasional.erase(head_);
    needs_.at_least({.act_blocks_per_row = act_blocks(n_embd), .panel_cols = n_embd});
  }
  if (load)
    weights_.pack(*pool_, poll);
  else
    weights_.release_source();
}

ScratchNeeds Stage::needs(CacheType cells) const {
  ScratchNeeds all = needs_;
  for (const auto& layer : layers_)
    for (const auto& block : layer) all.at_least(block->needs(cells));
  return all;
}

std::vector<std::span<const uint8_t>> Stage::token_weights(size_t copy) const {
  return weights_.parts(copy, facts_.occasional);
}

bool Stage::fine_inputs() const {
  bool any = false;
  for_matrices([&](const TensorRef&, const PackedTensor& w) {
    any = any || pyflow::fine_inputs(w.dtype());
  });
  return any;
}

bool Stage::has_prefill() const {
  bool any = false;
  for_matrices([&](const TensorRef&, const PackedTensor& w) {
    any = any || kernels_.prefill_matmul[static_cast<size_t>(w.dtype())];
  });
  return any;
}

void Stage::embed(Step& s, Team& team) const {
  float* x = s.row_output(0);
  each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      float* row = x + r * s.stride;
      embedding_->dequantize_row(s.tokens[static_cast<size_t>(r)], row, s.copy);
      if (embedding_scale_ != 1) kernels_.scale(row, embedding_scale_, spec_.n_embd);
    }
  });
}

void Stage::final_norm(const float* x, float* out) const {
  head_norm_(kernels_, x, spec_.n_embd, out);
}

void Stage::logits(Step& s, Team& team, std::span<const int32_t> rows, float* gathered,
                   float* logits, int64_t stride) const {
  const int64_t n = static_cast<int64_t>(rows.size());
  if (s.own_rows) gathered = s.own[1];
  each_row(s, team, n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      final_norm(s.registers[0] + rows[static_cast<size_t>(i)] * s.stride, gathered + i * s.stride);
  });
  const auto finish = [&](int64_t row, int64_t column, int64_t columns) {
    float* values = logits + row * stride + column;
    if (head_bias_) kernels_.add(values, head_bias_ + column, columns);
    if (head_scale_ != 1) kernels_.scale(values, head_scale_, columns);
    if (head_softcap_ != 0) kernels_.softcap(values, head_softcap_, columns);
  };
  const auto n_prefill = std::ranges::lower_bound(rows, s.n_prefill) - rows.begin();
  multiply(s, team, std::array{Product{head_, logits, stride}}, {gathered, s.stride, n, n_prefill},
           std::cref(finish));
}

}  // namespace pyflow
