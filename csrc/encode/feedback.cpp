#include "encode/feedback.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "core/errors.h"

namespace pyflow {
namespace {

// Added to the diagonal, in units of its mean, as in GPTQ. With a tenth of it smollm2 in Q6_B64
// diverges by 0.00843 instead of 0.00801.
constexpr float kDamping = 0.01f;
// Mean diagonals above kLargest are not sums of inputs; below kLeast no input was seen.
constexpr double kLargest = 1e30, kLeast = 1e-30;
constexpr double kLeastPivot = 1e-6;
constexpr int64_t kPanel = 64;  // columns factored before the rest is updated

constexpr const char* kWhat = "error feedback";

size_t floats(int64_t n) { return static_cast<size_t>(n) * sizeof(float); }

[[noreturn]] void refuse(int64_t column) {
  const std::string at = std::to_string(column);
  throw FormatError(
      "second moments of inputs: expected a positive definite matrix, found one that "
      "is not so from column " +
      at + " on; measure them again");
}

// The square of one group.
class Square {
 public:
  Square(float* h, int64_t n) : h_(h), n_(n) {}
  float* row(int64_t i) { return h_ + i * n_; }

  // Columns [begin, end) of rows [begin, end).
  bool factor_corner(int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      const float* own = row(j);
      float pivot = own[j];
      for (int64_t k = begin; k < j; ++k) pivot -= own[k] * own[k];
      if (!(pivot > 0.0f) || !std::isfinite(pivot)) return false;
      row(j)[j] = std::sqrt(pivot);
      solve(j + 1, end, begin, j);
    }
    return true;
  }
  // Column j of rows [first, last); columns begin .. j - 1 are done.
  void solve(int64_t first, int64_t last, int64_t begin, int64_t j) {
    const float *own = row(j), inverse = 1.0f / own[j];
    for (int64_t i = first; i < last; ++i) {
      float* r = row(i);
      float sum = r[j];
      for (int64_t k = begin; k < j; ++k) sum -= r[k] * own[k];
      r[j] = sum * inverse;
    }
  }

 private:
  float* h_;
  int64_t n_;
};

Square square(const Buffer& squares, int64_t group, int64_t n) {
  return {squares.as<float>() + group * Triangles::kWidth * Triangles::kWidth, n};
}

}  // namespace

Feedback::Feedback(const float* moments, const Triangles& shape, ThreadPool* pool,
                   const EncodeTable& table)
    : shape_(shape),
      squares_(floats(shape.n_groups() * Triangles::kWidth * Triangles::kWidth), kWhat),
      factors_(squares_.size(), kWhat),
      importance_(floats(shape.n_cols()), kWhat),
      diagonal_(floats(shape.n_cols()), kWhat),
      units_(static_cast<size_t>(shape.n_groups())) {
  for (int64_t g = 0; g < shape.n_groups(); ++g) factor(g, moments + shape.begin(g), pool, table);
}

void Feedback::load(int64_t group, const float* moments) {
  const int64_t n = shape_.width(group), first = group * Triangles::kWidth;
  Square h = square(factors_, group, n), whole = square(squares_, group, n);
  double mean = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    const int64_t step = i / Triangles::kStep, stride = Triangles::kStep * (step + 1);
    const float* from = moments + Triangles::row_begin(step) + i % Triangles::kStep * stride;
    std::copy(from, from + i + 1, h.row(i));
    if (!(from[i] >= 0.0f)) refuse(first + i);
    mean += static_cast<double>(from[i]) / static_cast<double>(n);
  }
  if (!(mean <= kLargest)) refuse(first);
  // Without any input all columns count alike and do not correlate. Otherwise scale to mean 1, so
  // that nothing overflows.
  if (mean < kLeast) mean = 0.0;
  const float scale = mean > 0.0 ? static_cast<float>(1.0 / mean) : 0.0f,
              unit = mean > 0.0 ? static_cast<float>(mean) : 1.0f;
  units_[static_cast<size_t>(group)] = unit;
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j <= i; ++j) h.row(i)[j] *= scale;
    h.row(i)[i] += mean > 0.0 ? kDamping : 1.0f;
    diagonal_.as<float>()[first + i] = h.row(i)[i] * unit;
    for (int64_t j = 0; j <= i; ++j) whole.row(i)[j] = whole.row(j)[i] = h.row(i)[j];
  }
}

void Feedback::factor(int64_t group, const float* moments, ThreadPool* pool,
                      const EncodeTable& table) {
  load(group, moments);
  const int64_t n = shape_.width(group), first = group * Triangles::kWidth;
  Square h = square(factors_, group, n);
  std::vector<float> down(static_cast<size_t>(kPanel * n)), up(down.size());
  for (int64_t begin = 0; begin < n; begin += kPanel) {
    const int64_t end = std::min(begin + kPanel, n);
    if (!h.factor_corner(begin, end)) refuse(first + begin);
    const auto below = [&](int64_t from, int64_t to) {
      for (int64_t j = begin; j < end; ++j) h.solve(from, to, begin, j);
      for (int64_t i = from; i < to; ++i)
        for (int64_t j = begin; j < end; ++j) {
          up[static_cast<size_t>((j - begin) * n + i)] = h.row(i)[j];
          down[static_cast<size_t>((j - begin) * n + i)] = -h.row(i)[j];
        }
    };
    const auto trail = [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; i += Triangles::kStep)
        table.add_outer({.a = down.data() + i,
                         .a_stride = n,
                         .b = up.data() + end,
                         .b_stride = n,
                         .n = end - begin,
                         .out = h.row(i) + end,
                         .out_stride = n,
                         .rows = std::min(Triangles::kStep, to - i),
                         .columns = i - end + Triangles::kStep});
    };
    if (!pool) {
      below(end, n);
      trail(end, n);
      continue;
    }
    pool->run([&](Team& team) {
      team.for_each(n - end, Triangles::kStep,
                    [&](int64_t from, int64_t to) { below(end + from, end + to); });
      team.for_each(n - end, Triangles::kStep,
                    [&](int64_t from, int64_t to) { trail(end + from, end + to); });
    });
  }
  const float unit = units_[static_cast<size_t>(group)];
  std::vector<float> inverse(static_cast<size_t>(n));
  for (int64_t k = 0; k < n; ++k) {
    const float pivot = h.row(k)[k];
    inverse[static_cast<size_t>(k)] = 1.0f / pivot;
    importance_.as<float>()[first + k] = pivot * pivot * unit;
  }
  for (int64_t j = 0; j < n; ++j)
    for (int64_t k = 0; k < j; ++k) h.row(j)[k] *= inverse[static_cast<size_t>(k)];
}

BlockFactors::BlockFactors(const Feedback& feedback, int64_t block)
    : block_(block),
      importance_(floats(feedback.shape().n_cols()), kWhat),
      factors_(floats(feedback.shape().n_cols() * block), kWhat),
      inverse_(factors_.size(), kWhat) {
  const auto size = static_cast<size_t>(block);
  std::vector<double> l(size * size), v(size * size);  // L, and L^-1
  for (int64_t column = 0; column < feedback.shape().n_cols(); column += block) {
    const int64_t group = column / Triangles::kWidth, own = column % Triangles::kWidth;
    for (size_t i = 0; i < size; ++i) {
      const float* h = feedback.h(group, own + static_cast<int64_t>(i)) + own;
      for (size_t j = 0; j <= i; ++j) {
        double sum = static_cast<double>(h[j]);
        for (size_t k = 0; k < j; ++k) sum -= l[i * size + k] * l[j * size + k];
        // Positive: H is positive definite by more than floats round.
        l[i * size + j] = i == j ? std::sqrt(std::max(sum, kLeastPivot)) : sum / l[j * size + j];
      }
    }
    for (size_t j = 0; j < size; ++j)
      for (size_t i = j; i < size; ++i) {
        double sum = i == j ? 1.0 : 0.0;
        for (size_t k = j; k < i; ++k) sum -= l[i * size + k] * v[k * size + j];
        v[i * size + j] = sum / l[i * size + i];
      }
    float* const importance = importance_.as<float>() + column;
    float* const factors = factors_.as<float>() + column * block;
    float* const inverse = inverse_.as<float>() + column * block;
    for (size_t i = 0; i < size; ++i) {
      const double pivot = l[i * size + i];
      importance[i] = static_cast<float>(pivot * pivot);
      for (size_t k = 0; k < i; ++k)
        factors[i * size + k] = static_cast<float>(l[i * size + k] / l[k * size + k]);
      for (size_t j = 0; j <= i; ++j) {
        double sum = 0.0;
        for (size_t k = i; k < size; ++k) sum += v[k * size + i] * v[k * size + j];
        inverse[i * size + j] = inverse[j * size + i] = static_cast<float>(sum);
      }
    }
  }
}

}  // namespace pyflow
