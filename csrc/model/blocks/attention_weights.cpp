#include "model/blocks/attention_weights.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/errors.h"

namespace pyflow {

AttentionWeights::AttentionWeights(const BlockSpec& spec, BlockContext& c)
    : in_(register_index(spec.text("input"))),
      out_(register_index(spec.text("output"))),
      n_embd_(c.stage.n_embd),
      n_heads_(spec.integer("n_heads")),
      n_kv_heads_(spec.integer("n_kv_heads")),
      head_dim_(spec.integer("head_dim")),
      value_dim_(spec.has("value_dim") ? spec.integer("value_dim") : head_dim_),
      scale_(spec.number("scale")),
      softcap_(spec.number("softcap")),
      layer_(c.facts.kv_layers.size()) {
  if (n_heads_ < 1 || n_kv_heads_ < 1 || head_dim_ < 1 || value_dim_ < 1 || n_heads_ % n_kv_heads_)
    throw ShapeError("attention: " + std::to_string(n_heads_) + " heads of " +
                     std::to_string(head_dim_) + " cannot share " + std::to_string(n_kv_heads_) +
                     " kv heads evenly");
  if (const int64_t most = std::max(head_dim_, value_dim_); most > kMaxHeadDim)
    throw UnsupportedError("attention: expected heads of up to " + std::to_string(kMaxHeadDim) +
                           ", found " + std::to_string(most));
  if (spec.has("rope")) rope_ = static_cast<size_t>(spec.integer("rope"));
  if (rope_ && (*rope_ >= c.stage.ropes.size() ||
                2 * static_cast<int64_t>(c.stage.ropes[*rope_].pairs()) > head_dim_))
    throw ShapeError("attention: rope " + std::to_string(*rope_) + " does not fit heads of " +
                     std::to_string(head_dim_));
  if (spec.has("alibi"))
    for (const double slope : spec.numbers("alibi")) slopes_.push_back(static_cast<float>(slope));
  if (!slopes_.empty() && std::ssize(slopes_) != n_heads_)
    throw ShapeError("attention: alibi: expected a slope for each of " + std::to_string(n_heads_) +
                     " heads, found " + std::to_string(slopes_.size()));
  Weights& w = c.weights;
  q_ = &w.matrix(spec.tensor("q"), q_dim(), n_embd_);
  k_ = &w.matrix(spec.tensor("k"), k_dim(), n_embd_, Weights::Loop::Continued);
  v_ = &w.matrix(spec.tensor("v"), v_dim(), n_embd_, Weights::Loop::Continued);
  values_apart_ = spec.tensor("v").name != spec.tensor("q").name &&
                  spec.tensor("v").name != spec.tensor("k").name;
  if (values_apart_) c.facts.values.insert(v_);
  o_ = &w.matrix(spec.tensor("o"), n_embd_, mixed_dim());
  q_bias_ = w.vector_or_null(spec.tensor_or_none("q_bias"), q_dim());
  k_bias_ = w.vector_or_null(spec.tensor_or_none("k_bias"), k_dim());
  v_bias_ = w.vector_or_null(spec.tensor_or_none("v_bias"), v_dim());
  o_bias_ = w.vector_or_null(spec.tensor_or_none("o_bias"), n_embd_);
  norms_all_ = spec.text("norm_span") == "all";
  if (!norms_all_ && spec.text("norm_span") != "head")
    throw UnsupportedError("attention: norm_span '" + spec.text("norm_span") +
                           "': expected head or all");
  q_norm_ = head_norm(w, spec, "q_norm", "q_norm_bias", n_heads_);
  k_norm_ = head_norm(w, spec, "k_norm", "k_norm_bias", n_kv_heads_);
  c.facts.kv_layers.push_back({.n_kv_heads = n_kv_heads_,
                               .key_dim = head_dim_,
                               .value_dim = value_dim_,
                               .window = spec.integer("window")});
  c.facts.kv_ropes.push_back(rope_);
  c.facts.relative = c.facts.relative || rope_ || !slopes_.empty();
}

AttentionWeights::HeadNorm AttentionWeights::head_norm(Weights& w, const BlockSpec& spec,
                                                       const char* weight, const char* bias,
                                                       int64_t n_heads) const {
  if (!spec.has(weight)) return {};
  const std::vector<TensorRef> refs = spec.tensors(weight);
  const bool one_for_all = !norms_all_ && refs.size() == 1 && w.size(refs[0]) == head_dim_;
  const int64_t n = one_for_all ? head_dim_ : n_heads * head_dim_;
  return {.norm = RowNorm(spec.text("norm_type"), spec.number("norm_eps"), w.vector(refs, n),
                          spec.has(bias) ? w.vector(spec.tensors(bias), n) : nullptr),
          .step = one_for_all ? 0 : head_dim_};
}

void AttentionWeights::device_needs(DeviceNeeds& needs) const {
  needs.vector(q_bias_, q_dim());
  needs.vector(k_bias_, k_dim());
  needs.vector(v_bias_, v_dim());
  needs.vector(o_bias_, n_embd_);
  needs.vector(slopes_.empty() ? nullptr : slopes_.data(), n_heads_);
  for (const auto& [norm, n_heads] : {std::pair{&q_norm_, n_heads_}, {&k_norm_, n_kv_heads_}}) {
    if (!*norm) continue;
    if (norms_all_) norm->norm.device_needs(needs, n_heads * head_dim_);
    for (int64_t h = 0; !norms_all_ && h < n_heads; ++h)
      norm->norm.device_needs(needs, head_dim_, h * norm->step);
  }
}

void AttentionWeights::record(DeviceStep& s) const {
  const DeviceLayer& layer = s.layers[layer_];
  const auto q = s.take(q_dim()), k = s.take(k_dim()), v = s.take(v_dim()),
             mixed = s.take(mixed_dim());
  const std::array products = {DeviceProduct{q_, q}, DeviceProduct{k_, k}, DeviceProduct{v_, v}};
  s.multiply(products, s.registers[in_], s.n_rows);
  record_turn(s, q, n_heads_, q_bias_, q_norm_);
  record_turn(s, k, n_kv_heads_, k_bias_, k_norm_);
  s.add(v, v_bias_, s.n_rows, v_dim());
  const auto& cells = layer.cells;
  const auto in_cells = [&](const DeviceStep::FloatRows& rows, int64_t n_heads, int64_t dim,
                            int64_t to_dim) {
    if (dim == to_dim) return rows;
    const auto to = s.take(n_heads * to_dim);
    s.ops.copy_heads(s.queue, rows, dim, to, to_dim, s.n_rows, n_heads);
    return to;
  };
  const auto queries = in_cells(q, n_heads_, head_dim_, cells.key_dim);
  s.ops.store_cells(s.queue, cells, *layer.slots, s.n_rows,
                    in_cells(k, n_kv_heads_, head_dim_, cells.key_dim),
                    in_cells(v, n_kv_heads_, value_dim_, cells.value_dim));
  const bool whole = cells.value_dim == value_dim_;
  const auto out = whole ? mixed : s.take(n_heads_ * cells.value_dim);
  s.ops.attend(s.queue,
               {.cells = cells,
                .q = queries,
                .out = out,
                .views = layer.views,
                .runs = layer.runs,
                .most_blocks = layer.most_blocks,
                .most_spans = layer.most_spans,
                .n_rows = s.n_rows,
                .n_heads = n_heads_,
                .scale = scale_,
                .softcap = softcap_,
                .slopes = slopes_.empty() ? nullptr : &s.weights.vector(slopes_.data(), n_heads_),
                .scratch = s.memory.attention});
  if (!whole)
    s.ops.copy_heads(s.queue, out, cells.value_dim, mixed, value_dim_, s.n_rows, n_heads_);
  s.multiply({o_, s.registers[out_]}, o_bias_, mixed, s.n_rows);
}

void AttentionWeights::record_turn(DeviceStep& s, const DeviceStep::FloatRows& rows,
                                   int64_t n_heads, const float* bias, const HeadNorm& norm) const {
  const int64_t n = n_heads * head_dim_;
  s.add(rows, bias, s.n_rows, n);
  if (norm && norms_all_) norm.norm.record(s, rows, s.n_rows, n, rows);
  const auto head = [&](int64_t h) {
    return DeviceStep::FloatRows{rows.buffer, rows.first + h * head_dim_, rows.stride};
  };
  if (norm && !norms_all_ && norm.step == 0 && rows.stride == n)
    norm.norm.record(s, {rows.buffer, rows.first, head_dim_}, s.n_rows * n_heads, head_dim_,
                     {rows.buffer, rows.first, head_dim_});
  else if (norm && !norms_all_)
    for (int64_t h = 0; h < n_heads; ++h)
      norm.norm.record(s, head(h), s.n_rows, head_dim_, head(h), h * norm.step);
  if (!rope_) return;
  const DeviceRope& rope = s.ropes[*rope_];
  s.ops.rope(s.queue, rows, rope.cos_sin, {n_heads, head_dim_, rope.n_pairs, rope.interleaved},
             s.n_rows);
}

}  // namespace pyflow
