#include "model/blocks/attention/attention_weights.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "core/errors.h"
#include "core/portable_math.h"
#include "model/blocks/linear.h"
#include "model/blocks/streams/carried.h"

namespace pyflow {
namespace {

Sees seen_by(const BlockSpec& spec) {
  if (spec.has("kv_from") && spec.text("kv_from") == "encoder") return Sees::Source;
  if (spec.has("kv_layer")) return Sees::CellsOfLayer;
  return spec.has("mask") && spec.text("mask") == "full" ? Sees::WholeText : Sees::Cells;
}

}  // namespace

Temperature::Temperature(const BlockSpec& spec) {
  if (!spec.has("temperature_beta")) return;
  beta = spec.number("temperature_beta");
  length = spec.integer("temperature_length");
  offset = spec.integer("temperature_offset");
  if (length < 1 || offset < 0 || offset > kv::kMaxPositions)
    throw ShapeError(
        "attention: temperature: expected a length of 1 or more and an offset of 0 or "
        "more, found " +
        std::to_string(length) + " and " + std::to_string(offset));
}

float Temperature::at(int64_t position) const {
  return static_cast<float>(
      1.0 + beta * portable::log(1.0 + static_cast<double>((position + offset) / length)));
}

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
      temperature_(spec),
      sees_(seen_by(spec)),
      window_(spec.integer("window")),
      chunked_(spec.has("mask") && spec.text("mask") == "chunk"),
      layer_(sees_ == Sees::Source ? c.facts.source_layers.size() : c.facts.kv_layers.size()) {
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
  if (spec.has("relative")) take_biases(w, spec);
  if (sees_ == Sees::Source) check_source(spec);
  share(c.stage.member);
  if (spec.has("kv_at")) {
    kv_at_ = carried(c, spec, "kv_at", k_dim() + v_dim());
    given_ = spec.has("kv_given") && spec.flag("kv_given");
  }
  take_inputs(w, spec, c.facts);
  o_ = &w.rows_of(spec.tensor("o"), n_embd_, mixed_dim(), embd_.own);
  o_bias_ = w.vector_or_null(spec.tensor_or_none("o_bias"), n_embd_);
  sinks_ = w.vector_or_null(spec.tensor_or_none("sinks"), whole_.n_heads);
  norms_all_ = spec.text("norm_span") == "all";
  if (!norms_all_ && spec.text("norm_span") != "head")
    throw UnsupportedError("attention: norm_span '" + spec.text("norm_span") +
                           "': expected head or all");
  q_norm_ = head_norm(w, spec, "q_norm", "q_norm_bias", whole_.n_heads);
  k_norm_ = head_norm(w, spec, "k_norm", "k_norm_bias", whole_.n_kv_heads);
  if (spec.has("v_norm") && spec.flag("v_norm"))
    v_norm_ = {.norm =
                   RowNorm("rms", spec.number("norm_eps"), w.vector_or_ones({}, value_dim_), {})};
  take_own();
  add_facts(c.facts);
  if (sees_ == Sees::CellsOfLayer) {
    layer_ = cells_of(spec.integer("kv_layer"), c.facts);
    c.facts.cell_readers[c.layer] = spec.integer("kv_layer");
  }
  if (sees_ == Sees::Cells) c.facts.attention_cells[c.layer] = layer_;
}

void AttentionWeights::take_inputs(Weights& w, const BlockSpec& spec, BlockFacts& facts) {
  const auto rows = [](const Share& heads, int64_t dim) {
    return Share{heads.begin * dim, heads.end * dim};
  };
  q_ = &w.rows_of(spec.tensor("q"), q_dim(), n_embd_, rows(own_q_, head_dim_));
  q_bias_ = w.vector_or_null(spec.tensor_or_none("q_bias"), q_dim());
  if (sees_ == Sees::CellsOfLayer || given_) return;
  k_ = &w.rows_of(spec.tensor("k"), k_dim(), n_embd_, rows(own_kv_, head_dim_),
                  Weights::Loop::Continued);
  v_ = &w.rows_of(spec.tensor("v"), v_dim(), n_embd_, rows(own_kv_, value_dim_),
                  Weights::Loop::Continued);
  values_apart_ = spec.tensor("v").name != spec.tensor("q").name &&
                  spec.tensor("v").name != spec.tensor("k").name;
  if (values_apart_) facts.values.insert(v_);
  k_bias_ = w.vector_or_null(spec.tensor_or_none("k_bias"), k_dim());
  v_bias_ = w.vector_or_null(spec.tensor_or_none("v_bias"), v_dim());
}

void AttentionWeights::share(const Membership& member) {
  whole_ = {n_heads_, n_kv_heads_};
  embd_ = Shares(Cut::tiles(n_embd_), member);
  for (int64_t m = 0; m < member.of; ++m) {
    const HeadShare heads(n_heads_, n_kv_heads_, member, m);
    mixed_.all.push_back({heads.q.begin * value_dim_, heads.q.end * value_dim_});
    all_q_.all.push_back({heads.q.begin * head_dim_, heads.q.end * head_dim_});
    // Of members that have the same kv head, the first one sends its keys.
    const int64_t end = heads.first ? heads.kv.end : heads.kv.begin;
    all_k_.all.push_back({heads.kv.begin * head_dim_, end * head_dim_});
    all_v_.all.push_back({heads.kv.begin * value_dim_, end * value_dim_});
    if (m == member.number) {
      own_q_ = heads.q;
      own_kv_ = heads.kv;
    }
  }
}

void AttentionWeights::take_own() {
  const bool together = norms_all_ && (q_norm_ || k_norm_);
  if (!together) {  // otherwise biases are added to all heads
    q_bias_ = from(q_bias_, own_q_.begin * head_dim_);
    k_bias_ = from(k_bias_, own_kv_.begin * head_dim_);
  }
  v_bias_ = from(v_bias_, own_kv_.begin * value_dim_);
  o_bias_ = from(o_bias_, embd_.own.begin);
  sinks_ = from(sinks_, own_q_.begin);
  q_norm_.first = own_q_.begin;
  k_norm_.first = own_kv_.begin;
  const auto keep = [this](std::vector<float>& values, int64_t each) {
    if (values.empty()) return;
    values.erase(values.begin() + own_q_.end * each, values.end());
    values.erase(values.begin(), values.begin() + own_q_.begin * each);
  };
  keep(slopes_, 1);
  keep(biases_, 2 * bias_reach_ + 1);
  n_heads_ = own_q_.size();
  n_kv_heads_ = own_kv_.size();
}

LayerKv AttentionWeights::cells() const {
  return {.n_kv_heads = n_kv_heads_,
          .key_dim = head_dim_,
          .value_dim = value_dim_,
          .window = window_,
          .chunked = chunked_};
}

size_t AttentionWeights::cells_of(int64_t layer, const BlockFacts& facts) const {
  const auto found = facts.attention_cells.find(layer);
  if (found == facts.attention_cells.end())
    throw ShapeError("attention: kv_layer " + std::to_string(layer) +
                     ": expected an earlier layer of this stage with cells of its own");
  const LayerKv &own = cells(), &theirs = facts.kv_layers[found->second];
  if (own.n_kv_heads != theirs.n_kv_heads || own.key_dim != theirs.key_dim ||
      own.value_dim != theirs.value_dim || own.window != theirs.window ||
      own.chunked != theirs.chunked)
    throw ShapeError("attention: kv_layer " + std::to_string(layer) +
                     ": expected heads and a window like those of the layer at hand");
  return found->second;
}

void AttentionWeights::add_facts(BlockFacts& facts) const {
  if (sees_ == Sees::WholeText) return;
  if (sees_ == Sees::Source) {
    facts.source_layers.push_back(cells());
    return;
  }
  facts.host_only = facts.host_only || sees_ == Sees::CellsOfLayer;
  if (sees_ == Sees::CellsOfLayer) return;
  facts.kv_layers.push_back(cells());
  facts.kv_ropes.push_back(rope_ ? std::optional(KeyRope{*rope_}) : std::nullopt);
  facts.relative = facts.relative || rope_ || !slopes_.empty() || !biases_.empty();
  facts.absolute = facts.absolute || temperature_ || chunked_;
  facts.host_only = facts.host_only || temperature_ || v_norm_ || !biases_.empty();
}

void AttentionWeights::check_source(const BlockSpec& spec) const {
  if (rope_ || temperature_ || window_ != 0 || !slopes_.empty() || !biases_.empty() ||
      spec.text("norm_span") == "all")
    throw UnsupportedError(
        "attention to a source: expected no rope, temperature, window, ALiBi, biases by distance "
        "or norms of "
        "all heads, found some");
}

void AttentionWeights::take_biases(Weights& w, const BlockSpec& spec) {
  const int64_t n_buckets = spec.integer("n_buckets");
  const std::vector<double>& buckets = spec.numbers("buckets");
  if (n_buckets < 1 || buckets.size() % 2 == 0)
    throw ShapeError("attention: buckets: expected those of distances -n to n, found " +
                     std::to_string(buckets.size()));
  const float* table = w.vector(spec.tensor("relative"), n_buckets * n_heads_);
  bias_reach_ = std::ssize(buckets) / 2;
  for (int64_t h = 0; h < n_heads_; ++h)
    for (const double bucket : buckets) {
      if (!(bucket >= 0 && bucket < static_cast<double>(n_buckets)))
        throw ShapeError("attention: buckets: expected numbers below " + std::to_string(n_buckets));
      biases_.push_back(table[static_cast<int64_t>(bucket) * n_heads_ + h]);
    }
}

void AttentionWeights::normalize_all(const Step& s, float* heads, int64_t n, const float* bias,
                                     const HeadNorm& norm) {
  if (bias) s.kernels.add(heads, bias, n);
  if (norm) norm.norm(s.kernels, heads, n, heads);
}

void AttentionWeights::turn(const Step& s, int64_t row, const Heads& heads, int64_t first,
                            int64_t last, const float* bias, const HeadNorm& norm) const {
  const bool by_head = !norms_all_ || !(q_norm_ || k_norm_);  // otherwise already done
  if (bias && by_head)
    s.kernels.add(heads.at(row, first), bias + first * head_dim_, (last - first) * head_dim_);
  for (int64_t h = first; h < last; ++h) {
    float* head = heads.at(row, h);
    if (norm && by_head) norm.norm(s.kernels, head, head_dim_, head, (norm.first + h) * norm.step);
    if (!rope_) continue;
    const RopeTable& rope = s.ropes[*rope_];
    s.kernels.rope(head, rope.row(row), rope.n_pairs, rope.interleaved);
  }
}

AttentionWeights::HeadNorm AttentionWeights::head_norm(Weights& w, const BlockSpec& spec,
                                                       const char* weight, const char* bias,
                                                       int64_t n_heads) const {
  if (spec.has("plain_norms") && spec.flag("plain_norms"))
    return {.norm = RowNorm(spec.text("norm_type"), spec.number("norm_eps"),
                            w.vector_or_ones({}, head_dim_), nullptr)};
  if (!spec.has(weight)) return {};
  const std::vector<TensorRef> refs = spec.tensors(weight);
  const bool one_for_all = !norms_all_ && refs.size() == 1 && w.size(refs[0]) == head_dim_;
  const int64_t n = one_for_all ? head_dim_ : n_heads * head_dim_;
  return {.norm = RowNorm(spec.text("norm_type"), spec.number("norm_eps"), w.vector(refs, n),
                          spec.has(bias) ? w.vector(spec.tensors(bias), n) : nullptr),
          .step = one_for_all ? 0 : head_dim_};
}

void AttentionWeights::device_needs(DeviceNeeds& needs) const {
  needs.cut(q_, q_cut());
  needs.cut(k_, k_cut());
  needs.cut(v_, v_cut());
  needs.vector(q_bias_, q_dim());
  needs.vector(k_bias_, k_dim());
  needs.vector(v_bias_, v_dim());
  needs.vector(o_bias_, n_embd_);
  for (int64_t i = 0; i < needs.n_members() && !slopes_.empty(); ++i) {
    const Share heads = k_cut().units_of(i, needs.n_members());
    needs.vector(slopes_.data() + heads.begin * group(), heads.size() * group());
  }
  for (int64_t i = 0; i < needs.n_members() && sinks_; ++i) {
    const Share heads = k_cut().units_of(i, needs.n_members());
    needs.vector(sinks_ + heads.begin * group(), heads.size() * group());
  }
  for (const auto& [norm, n_heads] : {std::pair{&q_norm_, n_heads_}, {&k_norm_, n_kv_heads_}}) {
    if (!*norm) continue;
    if (norms_all_) norm->norm.device_needs(needs, n_heads * head_dim_);
    for (int64_t h = 0; !norms_all_ && h < n_heads; ++h)
      norm->norm.device_needs(needs, head_dim_, h * norm->step);
  }
}

void AttentionWeights::record(DeviceStep& s) const {
  const auto q = s.take(q_dim()), k = s.take(k_dim()), v = s.take(v_dim()),
             mixed = s.take(mixed_dim());
  record_inputs(s, q, k, v);
  // Heads in the sizes of cells, where these are others.
  const auto [key_dim, value_dim] = s.members[0].layers[layer_].cells.dims();
  const auto in_cells = [&](const DeviceStep::Rows& rows, int64_t n, int64_t dim, int64_t to_dim) {
    return dim == to_dim ? rows : s.take(n * to_dim);
  };
  const auto q_cells = in_cells(q, n_heads_, head_dim_, key_dim),
             k_cells = in_cells(k, n_kv_heads_, head_dim_, key_dim),
             v_cells = in_cells(v, n_kv_heads_, value_dim_, value_dim),
             out_cells = in_cells(mixed, n_heads_, value_dim_, value_dim);
  s.each([&](DeviceMember& m) {
    const DeviceLayer& layer = m.layers[layer_];
    const Share kv = m.units_of(k_cut()), heads = {kv.begin * group(), kv.end * group()};
    record_turn(m, q[m.number], n_heads_, heads, q_norm_);
    record_turn(m, k[m.number], n_kv_heads_, kv, k_norm_);
    // Of these heads alone, from one size to another.
    const auto resize = [&](const DeviceStep::Rows& from, int64_t dim, const DeviceStep::Rows& to,
                            int64_t to_dim, const Share& some) {
      const FloatRows x = columns_of(from[m.number], some.begin * dim),
                      y = columns_of(to[m.number], some.begin * to_dim);
      if (dim != to_dim) m.ops.copy_heads(m.queue, x, dim, y, to_dim, m.n_rows, some.size());
      return y;
    };
    const FloatRows queries = resize(q, head_dim_, q_cells, key_dim, heads);
    const FloatRows keys = resize(k, head_dim_, k_cells, key_dim, kv),
                    values = resize(v, value_dim_, v_cells, value_dim, kv);
    m.ops.store_cells(m.queue, layer.cells, *layer.slots, m.n_rows, keys, values);
    m.ops.attend(
        m.queue,
        {.cells = layer.cells,
         .q = queries,
         .out = columns_of(out_cells[m.number], heads.begin * value_dim),
         .views = layer.views,
         .runs = layer.runs,
         .most_blocks = layer.most_blocks,
         .most_spans = layer.most_spans,
         .n_rows = m.n_rows,
         .n_heads = heads.size(),
         .scale = scale_,
         .softcap = softcap_,
         .slopes = slopes_.empty() ? nullptr
                                   : &m.weights.vector(slopes_.data() + heads.begin, heads.size()),
         .sinks = sinks_ ? &m.weights.vector(sinks_ + heads.begin, heads.size()) : nullptr,
         .scratch = m.memory.attention});
    resize(out_cells, value_dim, mixed, value_dim_, heads);
  });
  s.gather(mixed, mixed_cut());
  const Cut embd = Cut::tiles(n_embd_);
  s.each([&](DeviceMember& m) {
    m.multiply({o_, m.registers[out_]}, embd, o_bias_, mixed[m.number], m.n_rows);
  });
  s.gather(s.register_rows(out_), embd);
}

void AttentionWeights::record_inputs(DeviceStep& s, const DeviceStep::Rows& q,
                                     const DeviceStep::Rows& k, const DeviceStep::Rows& v) const {
  s.each([&](DeviceMember& m) {
    const size_t i = m.number;
    const std::array products = {DeviceProduct{q_, q[i]}, DeviceProduct{k_, k[i]},
                                 DeviceProduct{v_, v[i]}};
    m.multiply(products, m.registers[in_], m.n_rows);
    m.add(q[i], q_bias_, m.n_rows, q_dim(), m.rows_of(q_cut()));
    m.add(k[i], k_bias_, m.n_rows, k_dim(), m.rows_of(k_cut()));
    m.add(v[i], v_bias_, m.n_rows, v_dim(), m.rows_of(v_cut()));
  });
  if (!norms_all_) return;
  const auto normalize = [&](const DeviceStep::Rows& rows, const Cut& cut, const HeadNorm& norm) {
    if (!norm) return;
    s.gather(rows, cut);
    s.each([&](DeviceMember& m) {
      norm.norm.record(m, rows[m.number], m.n_rows, cut.n, rows[m.number]);
    });
  };
  normalize(q, q_cut(), q_norm_);
  normalize(k, k_cut(), k_norm_);
}

void AttentionWeights::record_turn(DeviceMember& m, const FloatRows& rows, int64_t n_heads,
                                   const Share& heads, const HeadNorm& norm) const {
  const FloatRows own = columns_of(rows, heads.begin * head_dim_);
  const bool in_a_row = heads.size() == n_heads && rows.stride == n_heads * head_dim_;
  if (norm && !norms_all_ && norm.step == 0 && (in_a_row || m.n_rows == 1)) {
    const FloatRows each = {own.buffer, own.first, head_dim_};
    norm.norm.record(m, each, m.n_rows * heads.size(), head_dim_, each);
  } else if (norm && !norms_all_) {
    for (int64_t h = heads.begin; h < heads.end; ++h) {
      const FloatRows head = columns_of(rows, h * head_dim_);
      norm.norm.record(m, head, m.n_rows, head_dim_, head, h * norm.step);
    }
  }
  if (!rope_) return;
  const DeviceRope& rope = m.ropes[*rope_];
  m.ops.rope(m.queue, own, rope.cos_sin, {heads.size(), head_dim_, rope.n_pairs, rope.interleaved},
             m.n_rows);
}

}  // namespace pyflow
