#include "model/texts/dense.h"

#include <algorithm>
#include <utility>

#include "model/blocks/activation.h"

namespace pyflow {

Dense::Dense(const BlockSpec& spec, Weights& weights)
    : n_in_(spec.integer("n_in")), n_out_(spec.integer("n_out")) {
  if (n_in_ < 1 || n_out_ < 1)
    throw ShapeError("dense: expected some values in and out, found " + std::to_string(n_in_) +
                     " and " + std::to_string(n_out_));
  weight_ = &weights.matrix(spec.tensor("weight"), n_out_, n_in_);
  bias_ = weights.vector_or_null(spec.tensor_or_none("bias"), n_out_);
  const std::string& activation = spec.text("activation");
  is_tanh_ = activation == "tanh";
  if (!is_tanh_ && activation != "none") activation_ = activation_named(activation);
  if (spec.has("norm"))
    norm_ = RowNorm(weights, spec.text("norm_type"), spec.number("norm_eps"), spec.tensor("norm"),
                    spec.tensor_or_none("norm_bias"), n_out_);
}

void Dense::forward(Step& s, Team& team, const float* x, int64_t x_stride, int64_t n, float* y,
                    int64_t y_stride) const {
  const auto finish = [&](int64_t row, int64_t column, int64_t columns) {
    float* values = y + row * y_stride + column;
    if (bias_) s.kernels.add(values, bias_ + column, columns);
    if (is_tanh_) s.kernels.softcap(values, 1, columns);
    if (activation_) s.kernels.activate(*activation_, values, columns);
  };
  const Product product = {weight_, y, y_stride};
  multiply(s, team, std::span(&product, 1), {x, x_stride, n, s.n_prefill > 0 ? n : 0},
           std::cref(finish));
  if (!norm_) return;
  team.for_each(n, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      norm_(s.kernels, y + r * y_stride, n_out_, y + r * y_stride);
  });
}

DenseFile::DenseFile(const std::vector<BlockSpec>& layers, TensorSource source, ThreadPool& pool,
                     const KernelTable& kernels, std::optional<DType> pack_as,
                     const std::function<void()>& poll)
    : weights_(std::move(source), pack_as, kernels) {
  for (const BlockSpec& layer : layers) layers_.emplace_back(layer, weights_);
  weights_.pack(pool, poll, nullptr);
}

}  // namespace pyflow
