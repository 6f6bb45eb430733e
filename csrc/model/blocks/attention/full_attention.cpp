// Attention of encoders: h = W_o attention(...) as in attention.cpp, but a row sees all rows of its
// text, near ones alone if there is a window. Keys and values are f32 in scratch and go with the
// layer.
#include <algorithm>
#include <array>

#include "model/blocks/attention/attention_weights.h"
#include "model/blocks/branch.h"
#include "model/blocks/linear.h"

namespace pyflow {
namespace {

// Rows of a text that one thread attends for: two times the kernel's, so that heads of long texts
// are shared and those of short ones stay whole.
constexpr int64_t kRowsAtOnce = 48;

class FullAttention final : public Branch, private AttentionWeights {
 public:
  FullAttention(const BlockSpec& spec, BlockContext& c) : AttentionWeights(spec, c) {
    if (!c.stage.member.alone() && norms_all_ && (q_norm_ || k_norm_))
      throw UnsupportedError(
          "attention to whole texts: members cannot share norms of all heads; use stages of one");
  }

  ScratchNeeds needs(CacheType) const override {
    return {.floats_per_row =
                padded(own_q()) + 2 * padded(own_k()) + padded(own_v()) + padded(mixed_dim()),
            .act_blocks_per_row = act_blocks(std::max(n_embd_, mixed_dim())),
            .panel_cols = std::max(n_embd_, mixed_dim())};
  }

  SharedRows inner(Step& s, Team& team, bool /*early*/) const override {
    float* at = s.temp;
    // Texts begin at keys of their own sixteen, so these may take more rows than the step has; a
    // batch is chosen so that they fit (TextEncoder).
    float* keys = at;
    at += s.n_keys * own_k();
    const auto take = [&](int64_t n, int64_t dim) {
      const Heads heads = {at, padded(n), dim};
      at += s.n_rows * heads.stride;
      return heads;
    };
    const Heads q = take(own_q(), head_dim_), k = take(own_k(), head_dim_),
                v = take(own_v(), value_dim_), all_mixed = take(mixed_dim(), value_dim_),
                mixed = {all_mixed.at(0, own_q_.begin), all_mixed.stride, value_dim_};
    const std::array products = {Product{q_, q.rows, q.stride}, Product{k_, k.rows, k.stride},
                                 Product{v_, v.rows, v.stride}};
    multiply(s, team, products, all_rows(s, s.registers[in_], s.stride));
    const int64_t n_prepared = n_pieces(s.texts, kTextKeys);
    team.for_each(n_prepared, std::max<int64_t>(1, n_prepared / (4 * team.size())),
                  [&](int64_t begin, int64_t end) {
                    for_pieces(s.texts, kTextKeys, begin, end,
                               [&](const TextRows& text, int64_t first, int64_t last) {
                                 prepare(s, text.first + first, text.first + last, q, k, v);
                                 float* to = keys + (text.first_keys * kTextKeys + first) * own_k();
                                 s.kernels.store_text_keys(k.at(text.first + first, 0), k.stride,
                                                           last - first, own_k(), to);
                               });
                  });
    team.for_each(n_pieces(s.texts, kRowsAtOnce) * n_heads_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for_pieces(s.texts, kRowsAtOnce, i / n_heads_, i / n_heads_ + 1,
                   [&](const TextRows& text, int64_t first, int64_t last) {
                     s.kernels.attend_text(args_of(text, q, keys, v, mixed), first, last,
                                           i % n_heads_);
                   });
    });
    return shared_rows(s, *o_, all_mixed.rows, all_mixed.stride, mixed_);
  }

  float* outer(Step& s, Team& team, const SharedRows& in, bool early) const override {
    return multiply_outer(s, team, *o_, o_bias_, in, out_, early);
  }
  const Shares& outputs() const override { return embd_; }

  std::vector<int64_t> inner_rounds(const KernelTable&, Regime) const override { return {}; }
  int64_t inner_nbytes(const KernelTable& kernels, Regime regime) const override {
    return wire_nbytes(form_of(kernels, *o_, mixed_, regime), mixed_);
  }

 private:
  // Of this member's heads.
  int64_t own_q() const { return n_heads_ * head_dim_; }
  int64_t own_k() const { return n_kv_heads_ * head_dim_; }
  int64_t own_v() const { return n_kv_heads_ * value_dim_; }

  void prepare(const Step& s, int64_t begin, int64_t end, const Heads& q, const Heads& k,
               const Heads& v) const {
    for (int64_t r = begin; r < end; ++r) {
      if (norms_all_ && (q_norm_ || k_norm_)) {
        normalize_all(s, q.at(r, 0), q_dim(), q_bias_, q_norm_);
        normalize_all(s, k.at(r, 0), k_dim(), k_bias_, k_norm_);
      }
      turn(s, r, q, 0, n_heads_, q_bias_, q_norm_);
      turn(s, r, k, 0, n_kv_heads_, k_bias_, k_norm_);
      if (v_bias_) s.kernels.add(v.at(r, 0), v_bias_, own_v());
    }
  }

  TextArgs args_of(const TextRows& text, const Heads& q, const float* keys, const Heads& v,
                   const Heads& mixed) const {
    return {.q = q.at(text.first, 0),
            .q_stride = q.stride,
            .k = keys + text.first_keys * kTextKeys * own_k(),
            .v = v.at(text.first, 0),
            .v_stride = v.stride,
            .out = mixed.at(text.first, 0),
            .out_stride = mixed.stride,
            .n = text.n,
            .n_heads = n_heads_,
            .n_kv_heads = n_kv_heads_,
            .key_dim = head_dim_,
            .value_dim = value_dim_,
            .scale = scale_,
            .softcap = softcap_,
            .window = window_,
            .slopes = slopes_.empty() ? nullptr : slopes_.data(),
            .bias = biases_.empty() ? nullptr : biases_.data(),
            .bias_reach = bias_reach_};
  }
};

}  // namespace

std::unique_ptr<Block> make_full_attention(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<FullAttention>(spec, c);
}

}  // namespace pyflow
