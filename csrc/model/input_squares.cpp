#include "model/input_squares.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "core/errors.h"

namespace pyflow {
namespace {

// Rows that are added up on their own. Many of nearly one direction, as attention mixes them, round
// alike: 300,000 of them, one after the other, left smollm2 an eigenvalue of -0.025 of the mean
// diagonal, of which Feedback adds 0.01.
constexpr int64_t kTogether = 1024;

}  // namespace

InputSquares::InputSquares(std::shared_ptr<const Stage> stage, bool with_moments)
    : stage_(std::move(stage)), with_moments_(with_moments) {
  stage_->for_matrices([&](const TensorRef&, const PackedTensor& w) {
    sums_[&w].columns.resize(static_cast<size_t>(w.cols()));
  });
}

std::shared_ptr<const void> InputSquares::take() {
  if (with_moments_ && !taken_.expired())
    throw ShapeError(
        "second moments of inputs: expected those that no other context observes; end that first");
  const auto taken = std::make_shared<const char>();
  taken_ = taken;
  return taken;
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
    moments_.push_back({Triangles(n), {}, {}, {}});
    Moments& m = moments_.back();
    for (size_t i = 0; i < n_matrices; ++i) m.matrices.push_back(at(i));
    moments_at_[at(0)] = static_cast<int64_t>(moments_.size()) - 1;
    const size_t nbytes = static_cast<size_t>(m.shape.size()) * sizeof(float);
    m.recent = Buffer(nbytes, "second moments of inputs");
    m.sums = Buffer(nbytes, "second moments of inputs");
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
                first = group * Triangles::kWidth, own = (column - first) / Triangles::kStep,
                width = Triangles::kStep * (own + 1),
                at = m.shape.begin(group) + Triangles::row_begin(own);
  float* const recent = m.recent.as<float>() + at;
  int64_t n_recent = m.n_recent;
  for (int64_t r = 0, n; r < n_rows; r += n) {
    n = std::min(n_rows - r, kTogether - n_recent);
    encode_table(stage_->kernels())
        .add_outer({.a = x + r * x_stride + column,
                    .a_stride = x_stride,
                    .b = x + r * x_stride + first,
                    .b_stride = x_stride,
                    .n = n,
                    .out = recent,
                    .out_stride = width,
                    .rows = Triangles::kStep,
                    .columns = width});
    n_recent += n;
    if (n_recent < kTogether) continue;
    stage_->kernels().add(m.sums.as<float>() + at, recent, Triangles::kStep * width);
    std::fill_n(recent, Triangles::kStep * width, 0.0f);
    n_recent = 0;
  }
}

void InputSquares::end_moments(int64_t number, int64_t n_rows) {
  Moments& m = moments_[static_cast<size_t>(number)];
  m.n_recent = (m.n_recent + n_rows) % kTogether;
}

const std::vector<InputSquares::Moments>& InputSquares::moments() {
  for (Moments& m : moments_) {
    if (!m.sums.data() || m.n_recent == 0) continue;
    stage_->kernels().add(m.sums.as<float>(), m.recent.as<float>(), m.shape.size());
    std::fill_n(m.recent.as<float>(), m.shape.size(), 0.0f);
    m.n_recent = 0;
  }
  return moments_;
}

}  // namespace pyflow
