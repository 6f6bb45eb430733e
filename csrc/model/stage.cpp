#include "model/stage.h"

#include <algorithm>
#include <array>
#include <cstring>

namespace pyflow {

Stage::Stage(StageSpec spec, TensorSource source, std::shared_ptr<ThreadPool> pool,
             const KernelTable& kernels, bool load, const std::function<void()>& poll)
    : spec_(std::move(spec)),
      kernels_(kernels),
      pool_(std::move(pool)),
      weights_(std::move(source)) {
  const int64_t n_embd = spec_.n_embd;
  if (n_embd < 1 || (spec_.n_vocab < 1 && (spec_.embedding || spec_.head)))
    throw ShapeError("model: embedding of " + std::to_string(spec_.n_vocab) + " x " +
                     std::to_string(n_embd) + " is empty");
  if (spec_.embedding) {
    embedding_ = &weights_.matrix(spec_.embedding->text("weight"), spec_.n_vocab, n_embd);
    embedding_scale_ = spec_.embedding->number("scale");
  }
  BlockContext context{spec_, weights_, kv_layers_, kv_ropes_};
  for (const auto& layer : spec_.layers) {
    layers_.emplace_back();
    for (const BlockSpec& block : layer) {
      layers_.back().push_back(make_block(block, context));
      needs_.at_least(layers_.back().back()->needs());
    }
  }
  if (spec_.head) {
    head_norm_ = weights_.vector(spec_.head->text("norm"), n_embd);
    head_eps_ = spec_.head->number("eps");
    head_ = &weights_.matrix(spec_.head->text("weight"), spec_.n_vocab, n_embd);
    head_scale_ = spec_.head->number("scale");
    head_softcap_ = spec_.head->number("softcap");
    needs_.at_least({.max_k = n_embd});
  }
  if (load) weights_.pack(*pool_, poll);
}

std::vector<std::span<const uint8_t>> Stage::token_weights(size_t copy) const {
  auto parts = weights_.parts(copy);
  if (embedding_ != head_)
    std::erase_if(parts,
                  [&](const auto& p) { return embedding_ && p.data() == embedding_->data(copy); });
  return parts;
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
  kernels_.rms_norm(x, head_norm_, head_eps_, spec_.n_embd, out);
}

void Stage::logits(Step& s, Team& team, std::span<const int32_t> rows, float* gathered,
                   float* logits, int64_t stride) const {
  const int64_t n = static_cast<int64_t>(rows.size());
  if (s.own_rows) gathered = s.own[1];
  each_row(s, team, n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      final_norm(s.registers[0] + rows[static_cast<size_t>(i)] * s.stride, gathered + i * s.stride);
  });
  quantize_rows(s, team, gathered, s.stride, n, spec_.n_embd);
  const auto finish = [&](int64_t row, int64_t column, int64_t columns) {
    float* values = logits + row * stride + column;
    if (head_scale_ != 1) kernels_.scale(values, head_scale_, columns);
    if (head_softcap_ != 0) kernels_.softcap(values, head_softcap_, columns);
  };
  multiply(s, team, std::array{Product{head_, logits, stride}}, gathered, s.stride, n,
           std::cref(finish));
}

}  // namespace pyflow
