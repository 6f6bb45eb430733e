// h = W_o attention(rope(norm(W_q h + b_q)), rope(norm(W_k h + b_k)), W_v h + b_v) over the KV
// cache, grouped queries; biases and norms where the model has them.
#include <array>

#include "model/blocks/blocks.h"

namespace pyflow {
namespace {

// From this many rows on, rows alone keep all threads busy; below, one row is cut at spans.
constexpr int64_t kManyRows = 8;
constexpr int64_t kRowTile = 16;

class Attention final : public Block {
 public:
  Attention(const BlockSpec& spec, BlockContext& c)
      : in_(register_index(spec.text("in"))),
        out_(register_index(spec.text("out"))),
        n_embd_(c.stage.n_embd),
        n_heads_(spec.integer("n_heads")),
        n_kv_heads_(spec.integer("n_kv_heads")),
        head_dim_(spec.integer("head_dim")),
        scale_(spec.number("scale")),
        softcap_(spec.number("softcap")),
        rope_(static_cast<size_t>(spec.integer("rope"))),
        layer_(c.kv_layers.size()) {
    if (n_heads_ < 1 || n_kv_heads_ < 1 || head_dim_ < 1 || n_heads_ % n_kv_heads_)
      throw ShapeError("attention: " + std::to_string(n_heads_) + " heads of " +
                       std::to_string(head_dim_) + " cannot share " + std::to_string(n_kv_heads_) +
                       " kv heads evenly");
    if (rope_ >= c.stage.ropes.size() ||
        2 * static_cast<int64_t>(c.stage.ropes[rope_].inv_freq.size()) > head_dim_)
      throw ShapeError("attention: rope " + std::to_string(rope_) + " does not fit heads of " +
                       std::to_string(head_dim_));
    Weights& w = c.weights;
    q_ = &w.matrix(spec.text("q"), q_dim(), n_embd_);
    k_ = &w.matrix(spec.text("k"), kv_dim(), n_embd_);
    v_ = &w.matrix(spec.text("v"), kv_dim(), n_embd_);
    o_ = &w.matrix(spec.text("o"), n_embd_, q_dim());
    q_bias_ = optional(w, spec, "q_bias", q_dim());
    k_bias_ = optional(w, spec, "k_bias", kv_dim());
    v_bias_ = optional(w, spec, "v_bias", kv_dim());
    q_norm_ = optional(w, spec, "q_norm", head_dim_);
    k_norm_ = optional(w, spec, "k_norm", head_dim_);
    if (q_norm_ || k_norm_) norm_eps_ = spec.number("norm_eps");
    c.kv_layers.push_back(
        {.n_kv_heads = n_kv_heads_, .head_dim = head_dim_, .window = spec.integer("window")});
    c.kv_ropes.push_back(rope_);
  }

  ScratchNeeds needs() const override {
    return {.floats_per_row = 2 * padded(q_dim()) + 2 * padded(kv_dim()),
            .max_k = std::max(n_embd_, q_dim()),
            .partial_floats = n_heads_ * (head_dim_ + 2)};
  }

  void forward(Step& s, Team& team) const override {
    float* q = s.temp;
    float* k = q + s.n_rows * padded(q_dim());
    float* v = k + s.n_rows * padded(kv_dim());
    float* mixed = v + s.n_rows * padded(kv_dim());
    const float* in = s.registers[in_];
    quantize_rows(s, team, in, s.stride, s.n_rows, n_embd_);
    multiply(s, team,
             std::array{Product{q_, q, padded(q_dim())}, Product{k_, k, padded(kv_dim())},
                        Product{v_, v, padded(kv_dim())}},
             in, s.stride, s.n_rows);
    const KvView kv = s.kv->view(layer_);
    const auto slots = s.kv->slots(layer_);
    team.for_each(s.n_rows, rows_per_piece(s, team), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* k_row = k + r * padded(kv_dim());
        float* v_row = v + r * padded(kv_dim());
        prepare(s, r, q + r * padded(q_dim()), n_heads_, q_bias_, q_norm_);
        prepare(s, r, k_row, n_kv_heads_, k_bias_, k_norm_);
        if (v_bias_) s.kernels.add(v_row, v_bias_, kv_dim());
        s.kernels.store_kv(kv, slots[static_cast<size_t>(r)], k_row, v_row);
      }
    });
    const AttendArgs args = {.kv = kv,
                             .q = q,
                             .q_stride = padded(q_dim()),
                             .out = mixed,
                             .out_stride = padded(q_dim()),
                             .views = s.kv->views(layer_).data(),
                             .n_heads = n_heads_,
                             .scale = scale_,
                             .softcap = softcap_};
    attend(s, team, args);
    quantize_rows(s, team, mixed, padded(q_dim()), s.n_rows, q_dim());
    multiply(s, team, std::array{Product{o_, s.registers[out_], s.stride}}, mixed, padded(q_dim()),
             s.n_rows);
  }

 private:
  int64_t q_dim() const { return n_heads_ * head_dim_; }
  int64_t kv_dim() const { return n_kv_heads_ * head_dim_; }

  static const float* optional(Weights& w, const BlockSpec& spec, const char* name, int64_t n) {
    const std::string tensor = spec.tensor_or_none(name);
    return tensor.empty() ? nullptr : w.vector(tensor, n);
  }

  // Bias, per-head norm and rotation of one row's query or key heads.
  void prepare(const Step& s, int64_t r, float* heads, int64_t n, const float* bias,
               const float* norm) const {
    if (bias) s.kernels.add(heads, bias, n * head_dim_);
    const int64_t pairs = s.rope_pairs[rope_];
    for (int64_t h = 0; h < n; ++h) {
      float* head = heads + h * head_dim_;
      if (norm) s.kernels.rms_norm(head, norm, norm_eps_, head_dim_, head);
      s.kernels.rope(head, s.ropes[rope_] + r * 2 * pairs, pairs, s.rope_interleaved[rope_] != 0);
    }
  }

  static int64_t spans(const RowView& v) {
    return v.n == 0 ? 0 : v.positions[v.n - 1] / kLogicalSpan - v.positions[0] / kLogicalSpan + 1;
  }

  void attend(const Step& s, Team& team, const AttendArgs& args) const {
    int64_t most = 1;
    for (int64_t r = 0; r < std::min(s.n_rows, kManyRows); ++r)
      most = std::max(most, spans(args.views[r]));
    const int64_t per_span = n_heads_ / n_kv_heads_ * (head_dim_ + 2);
    const bool split = s.n_rows < kManyRows && most > 1 && team.size() > 1 &&
                       s.n_rows * n_kv_heads_ * most * per_span <= s.partial_capacity;
    if (!split) {
      const int64_t tiles = (s.n_rows + kRowTile - 1) / kRowTile;
      team.for_each(tiles * n_kv_heads_, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) {
          const int64_t r = i / n_kv_heads_ * kRowTile;
          s.kernels.attend(args, r, std::min(r + kRowTile, s.n_rows), i % n_kv_heads_);
        }
      });
      return;
    }
    const auto partial = [&](int64_t row_head) { return s.partials + row_head * most * per_span; };
    team.for_each(s.n_rows * n_kv_heads_ * most, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row_head = i / most, r = row_head / n_kv_heads_;
        if (i % most < spans(args.views[r]))
          s.kernels.attend_span(args, r, row_head % n_kv_heads_, i % most,
                                partial(row_head) + i % most * per_span);
      }
    });
    team.for_each(s.n_rows * n_kv_heads_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        s.kernels.attend_merge(args, i / n_kv_heads_, i % n_kv_heads_, partial(i),
                               spans(args.views[i / n_kv_heads_]));
    });
  }

  size_t in_, out_;
  int64_t n_embd_, n_heads_, n_kv_heads_, head_dim_;
  float scale_, softcap_;
  size_t rope_, layer_;
  const PackedTensor *q_, *k_, *v_, *o_;
  const float *q_bias_, *k_bias_, *v_bias_, *q_norm_, *k_norm_;
  float norm_eps_ = 0;
};

}  // namespace

std::unique_ptr<Block> make_attention(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<Attention>(spec, c);
}

}  // namespace pyflow
