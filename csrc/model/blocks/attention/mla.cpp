// Latent attention (DeepSeek-AI 2024, "DeepSeek-V2", section 2.1). A token has a latent c of n_rank
// values and a part r of its key that turns. Keys and values of head h are k_h = [W_k,h c; rope(r)]
// and v_h = W_v,h c. Cells keep [c; rope(r)] alone, since
//   q_h . k_h = (W_k,h^T q_h) . c + rope(q_r,h) . rope(r)   and   sum p v_h = W_v,h (sum p c):
// attention of all query heads to one head of keys, whose values are the first n_rank of the key.
// Tokens of prompts and drawn ones are computed alike.
#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "model/adapters/low_rank.h"
#include "model/blocks/attention/attention_weights.h"
#include "model/blocks/attention/split.h"
#include "model/blocks/branch.h"
#include "model/blocks/linear.h"

namespace pyflow {
namespace {

class Mla final : public Branch {
 public:
  Mla(const BlockSpec& spec, BlockContext& c)
      : in_(register_index(spec.text("input"))),
        out_(register_index(spec.text("output"))),
        n_embd_(c.stage.n_embd),
        n_all_heads_(spec.integer("n_heads")),
        q_rank_(spec.has("q_a") ? spec.integer("q_rank") : 0),
        rank_(spec.integer("kv_rank")),
        nope_dim_(spec.integer("nope_dim")),
        rope_dim_(spec.integer("rope_dim")),
        value_dim_(spec.integer("value_dim")),
        scale_(spec.number("scale")),
        rope_(static_cast<size_t>(spec.integer("rope"))),
        layer_(c.facts.kv_layers.size()) {
    check_sizes(c.stage);
    share(c.stage.member);
    take_weights(spec, c.weights);
    for (const auto* by_head : {&keys_, &values_})
      for (const PackedTensor* w : *by_head) c.facts.side_by_side[w] = n_heads_;
    c.facts.kv_layers.push_back({.n_kv_heads = 1,
                                 .key_dim = rank_ + rope_dim_,
                                 .value_dim = rank_,
                                 .window = 0,
                                 .values_in_keys = true});
    c.facts.kv_ropes.push_back(KeyRope{rope_, rank_});
    c.facts.relative = true;
  }

  ScratchNeeds needs(CacheType cells) const override {
    const int64_t key = cell_dim(rank_ + rope_dim_, cells), value = cell_dim(rank_, cells);
    return {.floats_per_row = padded(q_rank_) + padded(q_dim()) + latent_stride(cells) +
                              n_heads_ * (key + value) + padded(n_all_heads_ * value_dim_),
            .row_floats_per_row = padded(q_rank_),
            .act_blocks_per_row = std::max(
                {act_blocks(n_embd_), act_blocks(q_rank_), n_heads_ * act_blocks(nope_dim_),
                 n_heads_ * act_blocks(rank_), act_blocks(n_all_heads_ * value_dim_)}),
            .panel_cols = std::max({n_embd_, q_rank_, n_all_heads_ * value_dim_}),
            .partial_floats = n_heads_ * (value + 2)};
  }

  SharedRows inner(Step& s, Team& team, bool /*early*/) const override {
    const KvView& kv = s.kv->view(layer_);
    const Memory m(*this, s, kv.type);
    project(s, team, m);
    const int64_t n_items = n_heads_ + 1;  // of a row: its query heads, and its key
    team.for_each(s.n_rows * n_items, std::max<int64_t>(1, s.n_rows * n_items / (4 * team.size())),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; ++i) prepare(s, m, i / n_items, i % n_items);
                  });
    if (!s.adapters.empty()) project_queries(s, team, m);
    multiply_heads(s, team, {m.q, nope_dim_ + rope_dim_, nope_dim_}, keys_,
                   {m.queries, kv.key_dim, 0});
    const AttendArgs args = {.kv = kv,
                             .q = m.queries.rows,
                             .q_stride = m.queries.stride,
                             .out = m.mixed.rows,
                             .out_stride = m.mixed.stride,
                             .views = s.kv->views(layer_).data() + s.first_row,
                             .n_heads = n_heads_,
                             .scale = scale_,
                             .softcap = 0,
                             .scratch = s.kernel_scratch};
    SplitAttention(s, team, args, 0)(team, [](int64_t, int64_t, int64_t) {});
    multiply_heads(s, team, {m.mixed, kv.value_dim, rank_}, values_,
                   {m.values, value_dim_, values_of_.own.begin});
    return shared_rows(s, *o_, m.values.rows, m.values.stride, values_of_);
  }

  float* outer(Step& s, Team& team, const SharedRows& in, bool early) const override {
    return multiply_outer(s, team, *o_, o_bias_, in, out_, early);
  }
  const Shares& outputs() const override { return embd_; }

  std::vector<int64_t> inner_rounds(const KernelTable&, Regime) const override { return {}; }
  int64_t inner_nbytes(const KernelTable& kernels, Regime regime) const override {
    return wire_nbytes(form_of(kernels, *o_, values_of_, regime), values_of_);
  }

 private:
  // Rows of a step.
  struct Rows {
    float* rows;
    int64_t stride;
    float* at(int64_t row) const { return rows + row * stride; }
  };

  // latent: [c; r] of each row. queries, mixed: of this member's heads, as cells have keys and
  // values; values: of all heads.
  struct Memory {
    Rows q_latent, q, latent, queries, mixed, values;

    Memory(const Mla& b, const Step& s, CacheType cells) {
      float* at = s.temp;
      const auto take = [&](int64_t stride) {
        return Rows{std::exchange(at, at + s.n_rows * stride), stride};
      };
      q_latent = take(padded(b.q_rank_));
      q = take(padded(b.q_dim()));
      latent = take(b.latent_stride(cells));
      queries = take(b.n_heads_ * cell_dim(b.rank_ + b.rope_dim_, cells));
      mixed = take(b.n_heads_ * cell_dim(b.rank_, cells));
      values = take(padded(b.n_all_heads_ * b.value_dim_));
    }
  };

  // Inputs of products by head: n values of each, `step` floats apart. Their outputs begin at
  // `first`.
  struct HeadInputs {
    Rows rows;
    int64_t step, n;
  };
  struct HeadOutputs {
    Rows rows;
    int64_t step, first;
  };

  int64_t q_dim() const { return n_heads_ * (nope_dim_ + rope_dim_); }
  int64_t latent_stride(CacheType cells) const {
    return std::max(padded(rank_ + rope_dim_), cell_dim(rank_ + rope_dim_, cells));
  }

  void check_sizes(const StageSpec& stage) const {
    const auto within = [](int64_t n, int64_t most) { return 1 <= n && n <= most; };
    if (!within(n_all_heads_, 1 << 16) || !within(nope_dim_, kMaxHeadDim) ||
        !within(rope_dim_, kMaxHeadDim) || !within(value_dim_, kMaxHeadDim) ||
        !within(rank_, kMaxHeadDim - rope_dim_) || q_rank_ < 0 || q_rank_ > 1 << 24)
      throw ShapeError("mla: " + std::to_string(n_all_heads_) + " heads of " +
                       std::to_string(nope_dim_) + " + " + std::to_string(rope_dim_) +
                       ", values of " + std::to_string(value_dim_) + ", latents of " +
                       std::to_string(rank_) + " and " + std::to_string(q_rank_) +
                       ": expected at least 1, and keys of up to " + std::to_string(kMaxHeadDim));
    if (rank_ % kTileRows || value_dim_ % kTileRows)
      throw UnsupportedError("mla: expected latents and values of multiples of 16, found " +
                             std::to_string(rank_) + " and " + std::to_string(value_dim_));
    if (rope_ >= stage.ropes.size() ||
        2 * static_cast<int64_t>(stage.ropes[rope_].pairs()) > rope_dim_)
      throw ShapeError("mla: rope " + std::to_string(rope_) + " does not fit " +
                       std::to_string(rope_dim_) + " dimensions");
  }

  // Members have query heads each, and all cells.
  void share(const Membership& member) {
    embd_ = Shares(Cut::tiles(n_embd_), member);
    for (int64_t i = 0; i < member.of; ++i) {
      const Share heads = HeadShare(n_all_heads_, 1, member, i).q;
      values_of_.all.push_back({heads.begin * value_dim_, heads.end * value_dim_});
      if (i == member.number) own_ = heads;
    }
    values_of_.own = values_of_.all[static_cast<size_t>(member.number)];
    n_heads_ = own_.size();
  }

  void take_weights(const BlockSpec& spec, Weights& w) {
    const int64_t head_dim = nope_dim_ + rope_dim_;
    const Share q_rows = {own_.begin * head_dim, own_.end * head_dim};
    if (q_rank_ > 0) {
      q_a_ = &w.matrix(spec.tensor("q_a"), q_rank_, n_embd_);
      q_norm_ = RowNorm(w, "rms", spec.number("norm_eps"), spec.tensor("q_a_norm"), {}, q_rank_);
      q_a_bias_ = w.vector_or_null(spec.tensor_or_none("q_a_bias"), q_rank_);
    } else {
      q_ = &w.rows_of(spec.tensor("q"), n_all_heads_ * head_dim, n_embd_, q_rows);
    }
    kv_a_ = &w.matrix(spec.tensor("kv_a"), rank_ + rope_dim_, n_embd_, Weights::Loop::Continued);
    kv_norm_ = RowNorm(w, "rms", spec.number("norm_eps"), spec.tensor("kv_a_norm"), {}, rank_);
    kv_a_bias_ = w.vector_or_null(spec.tensor_or_none("kv_a_bias"), rank_ + rope_dim_);
    if (q_rank_ > 0) q_ = &w.rows_of(spec.tensor("q_b"), n_all_heads_ * head_dim, q_rank_, q_rows);
    const auto loop = [&](int64_t head) {
      return head == own_.begin ? Weights::Loop::Own : Weights::Loop::Continued;
    };
    for (int64_t h = own_.begin; h < own_.end; ++h)
      keys_.push_back(
          &w.matrix(key_of(spec, h), rank_, nope_dim_, loop(h), Weights::Format::Unordered));
    for (int64_t h = own_.begin; h < own_.end; ++h)
      values_.push_back(
          &w.matrix(value_of(spec, h), value_dim_, rank_, loop(h), Weights::Format::Unordered));
    o_ = &w.rows_of(spec.tensor("o"), n_embd_, n_all_heads_ * value_dim_, embd_.own);
    o_bias_ = from(w.vector_or_null(spec.tensor_or_none("o_bias"), n_embd_), embd_.own.begin);
  }

  // W_k,h^T and W_v,h: tensors of their own, (heads, rank, nope_dim) and (heads, value_dim, rank), or
  // both in kv_b, (heads, nope_dim + value_dim, rank).
  TensorRef key_of(const BlockSpec& spec, int64_t head) const {
    if (!spec.has("kv_b")) return spec.tensor("k_b").slice(head * rank_, rank_);
    return {.name = spec.tensor("kv_b").name,
            .transposed = true,
            .inputs = {head * (nope_dim_ + value_dim_), nope_dim_}};
  }
  TensorRef value_of(const BlockSpec& spec, int64_t head) const {
    if (!spec.has("kv_b")) return spec.tensor("v_b").slice(head * value_dim_, value_dim_);
    const TensorRef whole = {.name = spec.tensor("kv_b").name};
    return whole.slice(head * (nope_dim_ + value_dim_) + nope_dim_, value_dim_);
  }

  // Queries of all heads, and latents as they come.
  void project(Step& s, Team& team, const Memory& m) const {
    const Rows& first = q_a_ ? m.q_latent : m.q;
    const std::array products = {Product{q_a_ ? q_a_ : q_, first.rows, first.stride},
                                 Product{kv_a_, m.latent.rows, m.latent.stride}};
    multiply(s, team, products, all_rows(s, s.registers[in_], s.stride));
    if (!q_a_) return;
    const Rows normed = {s.row_temp, padded(q_rank_)};
    each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        std::copy_n(m.q_latent.at(r), q_rank_, normed.at(r));
        if (q_a_bias_) s.kernels.add(normed.at(r), q_a_bias_, q_rank_);
        q_norm_(s.kernels, normed.at(r), q_rank_, normed.at(r));
      }
    });
    const std::array queries = {Product{q_, m.q.rows, m.q.stride}};
    multiply(s, team, queries, all_rows(s, normed.rows, normed.stride));
  }

  // Of a row: what turns of query head `item`, in its place; or stores its key.
  void prepare(const Step& s, const Memory& m, int64_t row, int64_t item) const {
    const RopeTable& rope = s.ropes[rope_];
    const KvView& kv = s.kv->view(layer_);
    const int64_t rest = kv.key_dim - rank_ - rope_dim_;
    if (item < n_heads_) {
      const float* from = m.q.at(row) + item * (nope_dim_ + rope_dim_) + nope_dim_;
      float* to = m.queries.at(row) + item * kv.key_dim + rank_;
      std::fill_n(std::copy_n(from, rope_dim_, to), rest, 0.0f);
      s.kernels.rope(to, rope.row(row), rope.n_pairs, rope.interleaved);
      return;
    }
    float* key = m.latent.at(row);
    if (kv_a_bias_) s.kernels.add(key, kv_a_bias_, rank_ + rope_dim_);
    kv_norm_(s.kernels, key, rank_, key);
    s.kernels.rope(key + rank_, rope.row(row), rope.n_pairs, rope.interleaved);
    std::fill_n(key + rank_ + rope_dim_, rest, 0.0f);
    const int32_t slot = s.kv->slots(layer_)[static_cast<size_t>(s.first_row + row)];
    s.kernels.store_kv(kv, slot, 0, key, nullptr);
  }

  // Floats for A x of a head's row.
  int64_t low_rank_floats(const Step& s) const {
    return s.low_rank_stride / n_heads_ / kTileRows * kTileRows;
  }

  // What adapters need of queries, whose matrices are those of keys, transposed.
  void project_queries(const Step& s, Team& team, const Memory& m) const {
    team.for_each(s.n_rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        for (int64_t h = 0; h < n_heads_ && s.adapters[static_cast<size_t>(r)]; ++h)
          project_row(s, keys_[static_cast<size_t>(h)], *s.adapters[static_cast<size_t>(r)],
                      m.q.at(r) + h * (nope_dim_ + rope_dim_),
                      s.low_rank + r * s.low_rank_stride + h * low_rank_floats(s));
    });
  }

  // Outputs of each head's matrix, always by the arithmetic of decoding.
  void multiply_heads(Step& s, Team& team, const HeadInputs& in,
                      const std::vector<const PackedTensor*>& weights,
                      const HeadOutputs& out) const {
    const int64_t n_blocks = act_blocks(in.n);
    const auto x = [&](size_t head) { return in.rows.rows + static_cast<int64_t>(head) * in.step; };
    const auto acts = [&](size_t head) {
      return s.acts + static_cast<int64_t>(head) * s.n_rows * n_blocks;
    };
    if (!float_inputs(weights[0]->dtype()))
      each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          for (size_t h = 0; h < weights.size(); ++h)
            quantize_row(s, x(h) + r * in.rows.stride, in.n, acts(h), r, s.n_rows);
      });
    const auto job = [&](size_t h) -> Job {
      float* y = out.rows.rows + out.first + static_cast<int64_t>(h) * out.step;
      return {{Product{weights[h], y, out.rows.stride}, Product{}},
              1,
              x(h),
              in.rows.stride,
              acts(h),
              s.n_rows,
              nullptr,
              nullptr,
              s.low_rank + static_cast<int64_t>(h) * low_rank_floats(s),
              s.low_rank_stride,
              0,
              &weights == &keys_};
    };
    multiply(s, team, weights.size(), std::cref(job), nullptr);
  }

  size_t in_, out_;
  int64_t n_embd_, n_all_heads_, n_heads_ = 0;  // n_heads_: of this member
  int64_t q_rank_, rank_, nope_dim_, rope_dim_, value_dim_;
  float scale_;
  size_t rope_, layer_;
  Share own_{0, 0};          // its heads
  Shares values_of_, embd_;  // columns of all members
  const PackedTensor *q_a_ = nullptr, *q_ = nullptr, *kv_a_ = nullptr, *o_ = nullptr;
  std::vector<const PackedTensor*> keys_, values_;  // by head
  const float *q_a_bias_ = nullptr, *kv_a_bias_ = nullptr, *o_bias_ = nullptr;
  RowNorm q_norm_, kv_norm_;
};

}  // namespace

std::unique_ptr<Block> make_mla(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<Mla>(spec, c);
}

}  // namespace pyflow
