#include "calibrate/input_moments.h"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>

#include "core/errors.h"
#include "encode/table.h"

namespace pyflow {
namespace {

// Rows that are added up on their own before they join the sums. Many rows of nearly one direction,
// as attention mixes them, round alike: adding 300,000 of them one after the other left smollm2 an
// eigenvalue of -0.025 of the mean diagonal, of which Feedback adds 0.01.
constexpr int64_t kTogether = 1024;

}  // namespace

InputMoments::InputMoments(std::shared_ptr<const Stage> stage, bool with_moments)
    : stage_(std::move(stage)), with_moments_(with_moments) {
  stage_->for_matrices([&](const TensorRef&, const PackedTensor& w) {
    sums_[&w].columns.resize(static_cast<size_t>(w.cols()));
  });
}

std::shared_ptr<const void> InputMoments::attach(const Stage& stage, const KvCache& kv) {
  if (&stage != stage_.get())
    throw ShapeError("input moments: they are of another model; make them of this one's stage");
  const auto lease = std::make_shared<const char>();
  if (!with_moments_) return lease;
  for (const KvGroup& group : kv.groups())
    if (group.used > 0)
      throw ShapeError("second moments of inputs: expected a context without cells, found " +
                       std::to_string(group.used) + " whose inputs are not known; clear it");
  if (!lease_.expired())
    throw ShapeError("second moments of inputs: another context observes them; end that first");
  lease_ = lease;
  return lease;
}

bool InputMoments::mixes(const PackedTensor& w) const {
  return with_moments_ && w.cols() % Triangles::kStep == 0 && stage_->value_weights().contains(&w);
}

void InputMoments::input(Team& team, const MatrixInput& in) {
  if (in.is_expert) return add_squares(team, in.weights, in);
  std::vector<const PackedTensor*> direct;
  for (const PackedTensor* const& w : in.weights)
    if (!mixes(*w))
      direct.push_back(w);
    else if (team.rank() == 0)
      reserve({&w, 1});
  if (!direct.empty()) add(team, direct, in);
}

void InputMoments::attention(Team& team, const AttentionInput& in) {
  if (!mixes(in.values)) return;
  if (team.rank() == 0 && moments_of(in.values)) try {
      mixing_.reserve(in);
    } catch (const std::exception&) {  // moments() then has some without sums
      moments_of(in.values)->sums = {};
    }
  team.barrier();
  if (!moments_of(in.values)) return;
  const MatrixInput mixed = mixing_.mix(team, in, stage_->kernels());
  const PackedTensor* const values = &in.values;
  add(team, {&values, 1}, mixed);
}

void InputMoments::add(Team& team, Matrices matrices, const MatrixInput& in) {
  add_squares(team, matrices, in);
  if (team.rank() == 0) reserve(matrices);
  team.barrier();
  if (Moments* const moments = moments_of(*matrices[0])) add_moments(team, in, *moments);
}

// Threads share the columns, so that each sum takes its rows in order.
void InputMoments::add_squares(Team& team, Matrices matrices, const MatrixInput& in) {
  team.for_each(matrices[0]->cols(), kActBlock, [&](int64_t begin, int64_t end) {
    for (const PackedTensor* w : matrices) {
      Sums& sums = sums_.find(w)->second;
      double* const columns = sums.columns.data();
      for (int64_t r = 0; r < in.n_rows; ++r) {
        const float* const x = in.x + (in.rows ? in.rows[r] : r) * in.x_stride;
        for (int64_t i = begin; i < end; ++i) columns[i] += static_cast<double>(x[i]) * x[i];
      }
      if (begin == 0) sums.n_rows += in.n_rows;
    }
  });
}

void InputMoments::reserve(Matrices matrices) noexcept {
  const int64_t n = matrices[0]->cols();
  if (!with_moments_ || n % Triangles::kStep != 0 || moments_at_.contains(matrices[0])) return;
  try {
    moments_.push_back({Triangles(n), {matrices.begin(), matrices.end()}, {}, {}});
    Moments& m = moments_.back();
    moments_at_[matrices[0]] = moments_.size() - 1;
    const size_t nbytes = static_cast<size_t>(m.shape.size()) * sizeof(float);
    m.recent = Buffer(nbytes, "second moments of inputs", "model");
    m.sums = Buffer(nbytes, "second moments of inputs", "model");
  } catch (const std::exception&) {  // moments() then has some without sums
  }
}

InputMoments::Moments* InputMoments::moments_of(const PackedTensor& first) {
  const auto found = moments_at_.find(&first);
  if (found == moments_at_.end()) return nullptr;
  Moments& m = moments_[found->second];
  return m.sums.data() ? &m : nullptr;
}

void InputMoments::add_moments(Team& team, const MatrixInput& in, Moments& m) {
  team.for_each(m.shape.n_cols() / Triangles::kStep, 1, [&](int64_t begin, int64_t end) {
    for (int64_t step = begin; step < end; ++step) add_step(in, m, step);
  });
  if (team.rank() == 0) m.n_recent = (m.n_recent + in.n_rows) % kTogether;
}

void InputMoments::add_step(const MatrixInput& in, const Moments& m, int64_t step) {
  const int64_t column = step * Triangles::kStep, group = column / Triangles::kWidth,
                first = group * Triangles::kWidth, own = (column - first) / Triangles::kStep,
                width = Triangles::kStep * (own + 1),
                at = m.shape.begin(group) + Triangles::row_begin(own);
  const EncodeTable& ops = encode_table(stage_->kernels());
  float* const recent = m.recent.as<float>() + at;
  int64_t n_recent = m.n_recent;
  for (int64_t r = 0, n; r < in.n_rows; r += n) {
    n = std::min(in.n_rows - r, kTogether - n_recent);
    ops.add_outer({.a = in.x + r * in.x_stride + column,
                   .a_stride = in.x_stride,
                   .b = in.x + r * in.x_stride + first,
                   .b_stride = in.x_stride,
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

const std::vector<InputMoments::Moments>& InputMoments::moments() {
  for (Moments& m : moments_) {
    if (!m.sums.data() || m.n_recent == 0) continue;
    stage_->kernels().add(m.sums.as<float>(), m.recent.as<float>(), m.shape.size());
    std::fill_n(m.recent.as<float>(), m.shape.size(), 0.0f);
    m.n_recent = 0;
  }
  return moments_;
}

}  // namespace pyflow
