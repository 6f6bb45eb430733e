#include "model/input_squares.h"

#include <utility>

#include <exception>

namespace pyflow {

InputSquares::InputSquares(std::shared_ptr<const Stage> stage, bool with_moments)
    : stage_(std::move(stage)), with_moments_(with_moments) {
  stage_->for_matrices([&](const TensorRef&, const PackedTensor& w) {
    sums_[&w].columns.resize(static_cast<size_t>(w.cols()));
  });
}

void InputSquares::add(const PackedTensor& w, const float* x, int64_t begin, int64_t end) {
  Sums& sums = sums_.find(&w)->second;
  double* columns = sums.columns.data();
  for (int64_t i = begin; i < end; ++i) columns[i] += static_cast<double>(x[i]) * x[i];
  if (begin == 0) ++sums.n_rows;
}

void InputSquares::prepare_moments(size_t n_matrices,
                                   const std::function<const PackedTensor*(size_t)>& at) noexcept {
  const int64_t n = at(0)->cols();
  if (!with_moments_ || n % Triangles::kStep != 0 || moments_at_.contains(at(0))) return;
  try {
    moments_.push_back({Triangles(n), {}, {}});
    Moments& m = moments_.back();
    for (size_t i = 0; i < n_matrices; ++i) m.matrices.push_back(at(i));
    moments_at_[at(0)] = static_cast<int64_t>(moments_.size()) - 1;
    m.sums =
        Buffer(static_cast<size_t>(m.shape.size()) * sizeof(float), "second moments of inputs");
  } catch (const std::exception&) {  // whoever reads them finds one without sums
  }
}

void InputSquares::prepare_mixing(const PackedTensor& v, int64_t own_floats,
                                  int64_t shared_floats) noexcept {
  const auto grow = [](Buffer& buffer, int64_t floats) {
    const size_t nbytes = static_cast<size_t>(floats) * sizeof(float);
    if (buffer.size() >= nbytes) return;
    buffer = {};
    buffer = Buffer(nbytes, "inputs of attention");
  };
  try {
    grow(own_mixing_[&v], own_floats);
    grow(shared_mixing_, shared_floats);
  } catch (const std::exception&) {
    moments_[static_cast<size_t>(moments_of(v))].sums = {};
  }
}

int64_t InputSquares::moments_of(const PackedTensor& first) const {
  const auto found = moments_at_.find(&first);
  if (found == moments_at_.end()) return -1;
  return moments_[static_cast<size_t>(found->second)].sums.data() ? found->second : -1;
}

int64_t InputSquares::moment_steps(int64_t number) const {
  return moments_[static_cast<size_t>(number)].shape.n_cols() / Triangles::kStep;
}

void InputSquares::add_moments(int64_t number, const float* x, int64_t x_stride, int64_t n_rows,
                               int64_t step) {
  const Moments& m = moments_[static_cast<size_t>(number)];
  const int64_t column = step * Triangles::kStep, group = column / Triangles::kWidth,
                first = group * Triangles::kWidth, own = (column - first) / Triangles::kStep;
  stage_->kernels().add_outer(
      {.a = x + column,
       .a_stride = x_stride,
       .b = x + first,
       .b_stride = x_stride,
       .n = n_rows,
       .out = m.sums.as<float>() + m.shape.begin(group) + Triangles::row_begin(own),
       .out_stride = Triangles::kStep * (own + 1),
       .rows = Triangles::kStep,
       .columns = Triangles::kStep * (own + 1)});
}

}  // namespace pyflow
