// A short convolution in the place of attention (LFM2, Liquid AI 2025): [b, c, x] = W_in h, y_p = c *
// sum_j w_j (b x)_{p - n + 1 + j} over the n newest positions, h = W_out y; products value by value,
// biases if the model has them. Cells keep b x (state_cells.h).
#include <algorithm>
#include <array>
#include <cstring>

#include "model/blocks/branch.h"
#include "model/blocks/linear.h"
#include "model/blocks/state_cells.h"

namespace pyflow {
namespace {

// Dims that one thread computes for all rows, which follow each other.
constexpr int64_t kDims = 64;
constexpr int64_t kMostTaps = 64;

class Shortconv final : public Branch {
 public:
  Shortconv(const BlockSpec& spec, BlockContext& c)
      : in_(register_index(spec.text("input"))),
        out_(register_index(spec.text("output"))),
        n_(c.stage.n_embd),
        n_taps_(spec.integer("window")),
        layer_(c.facts.kv_layers.size()),
        shares_({n_, kInnerUnit}, c.stage.member) {
    if (n_taps_ < 1 || n_taps_ > kMostTaps)
      throw ShapeError("shortconv: expected a window of 1 to " + std::to_string(kMostTaps) +
                       ", found " + std::to_string(n_taps_));
    const Share own = shares_.own;
    Weights& w = c.weights;
    const float* bias = w.vector_or_null(spec.tensor_or_none("in_proj_bias"), 3 * n_);
    for (size_t i = 0; i < 3; ++i) {
      const int64_t first = static_cast<int64_t>(i) * n_;
      ins_[i] = &w.rows_of(spec.tensor("in_proj").slice(first, n_), n_, n_, own,
                           i == 0 ? Weights::Loop::Own : Weights::Loop::Continued);
      in_biases_[i] = from(bias, first + own.begin);
    }
    taps_ = w.vector(spec.tensor("conv"), n_ * n_taps_) + own.begin * n_taps_;
    conv_bias_ = from(w.vector_or_null(spec.tensor_or_none("conv_bias"), n_), own.begin);
    product_ = &w.rows_of(spec.tensor("out_proj"), n_, n_, own);
    out_bias_ = from(w.vector_or_null(spec.tensor_or_none("out_proj_bias"), n_), own.begin);
    c.facts.kv_layers.push_back(
        state_cells("shortconv", std::max<int64_t>(1, own.size()), n_taps_));
    c.facts.kv_ropes.push_back(std::nullopt);
    c.facts.absolute = true;  // a state that moves away from its neighbours is none of theirs
  }

  ScratchNeeds needs(CacheType) const override {
    return {.floats_per_row = 3 * stride() + padded(n_),
            .act_blocks_per_row = act_blocks(n_),
            .panel_cols = n_};
  }

  SharedRows inner(Step& s, Team& team, bool /*early*/) const override {
    const int64_t rows = s.n_rows * stride();
    const std::array<float*, 3> bcx = {s.temp, s.temp + rows, s.temp + 2 * rows};
    const std::array products = {Product{ins_[0], bcx[0], stride()},
                                 Product{ins_[1], bcx[1], stride()},
                                 Product{ins_[2], bcx[2], stride()}};
    multiply(s, team, products, all_rows(s, s.registers[in_], s.stride));
    float* y = s.temp + 3 * rows;
    const int64_t n_own = shares_.own.size();
    team.for_each((n_own + kDims - 1) / kDims, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t r = 0; r < s.n_rows; ++r) {
          const int64_t at = i * kDims;
          step(s, r, at, std::min(kDims, n_own - at), bcx,
               y + r * padded(n_) + shares_.own.begin + at);
        }
    });
    return shared_rows(s, *product_, y, padded(n_), shares_);
  }

  float* outer(Step& s, Team& team, const SharedRows& in, bool early) const override {
    return multiply_outer(s, team, *product_, out_bias_, in, out_, early);
  }
  const Shares& outputs() const override { return shares_; }

  std::vector<int64_t> inner_rounds(const KernelTable&, Regime) const override { return {}; }
  int64_t inner_nbytes(const KernelTable& kernels, Regime regime) const override {
    return wire_nbytes(form_of(kernels, *product_, shares_, regime), shares_);
  }

 private:
  int64_t stride() const { return padded(shares_.own.size()); }

  // n dims of a row, from `at` on. Rows come in an order in which each follows the one before its
  // position.
  void step(const Step& s, int64_t row, int64_t at, int64_t n, const std::array<float*, 3>& bcx,
            float* y) const {
    const KvView& kv = s.kv->view(layer_);
    const RowView& seen = s.kv->views(layer_)[static_cast<size_t>(s.first_row + row)];
    const auto nbytes = static_cast<size_t>(n) * sizeof(float);
    std::array<float*, 3> part{};
    for (size_t i = 0; i < 3; ++i) {
      part[i] = bcx[i] + row * stride() + at;
      if (in_biases_[i]) s.kernels.add(part[i], in_biases_[i] + at, n);
    }
    const auto [b, c, x] = part;
    for (int64_t i = 0; i < n; ++i) x[i] *= b[i];
    std::memcpy(state_at(kv, seen.slots[seen.n - 1], at), x, nbytes);
    float sums[kDims] = {}, before[kDims];
    const float* taps = taps_ + at * n_taps_;
    const int32_t position = seen.positions[seen.n - 1];
    for (int64_t j = std::max<int64_t>(0, seen.n - n_taps_); j < seen.n; ++j) {  // oldest first
      const int64_t tap = n_taps_ - 1 - (position - seen.positions[j]);
      if (tap < 0) continue;
      std::memcpy(before, state_at(kv, seen.slots[j], at), nbytes);
      for (int64_t i = 0; i < n; ++i) sums[i] += taps[i * n_taps_ + tap] * before[i];
    }
    if (conv_bias_) s.kernels.add(sums, conv_bias_ + at, n);
    for (int64_t i = 0; i < n; ++i) y[i] = c[i] * sums[i];
  }

  size_t in_, out_;
  int64_t n_, n_taps_;
  size_t layer_;
  Shares shares_;  // of dims, among members
  std::array<const PackedTensor*, 3> ins_{};
  std::array<const float*, 3> in_biases_{};
  const PackedTensor* product_ = nullptr;
  const float *taps_ = nullptr, *conv_bias_ = nullptr, *out_bias_ = nullptr;
};

}  // namespace

std::unique_ptr<Block> make_shortconv(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<Shortconv>(spec, c);
}

}  // namespace pyflow
