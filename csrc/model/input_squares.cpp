#include "model/input_squares.h"

#include <utility>

namespace pyflow {

InputSquares::InputSquares(std::shared_ptr<const Stage> stage) : stage_(std::move(stage)) {
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

}  // namespace pyflow
