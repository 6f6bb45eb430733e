#include "model/adapters/row_norms.h"

#include <algorithm>

#include "core/buffer.h"
#include "kernels/dispatch.h"

namespace pyflow {
namespace {

constexpr int64_t kRowsAtOnce = 64;
// Parts of a table that threads share; their sums are added in order.
constexpr int64_t kTableParts = 32;

int64_t padded_rows(int64_t n) { return (n + kTileRows - 1) / kTileRows * kTileRows; }

double dot(const float* x, const float* y, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]) * y[i];
  return sum;
}

std::vector<float> all_rows(const PackedTensor& w) {
  std::vector<float> rows(static_cast<size_t>(w.rows() * w.cols()));
  for (int64_t i = 0; i < w.rows(); ++i) w.dequantize_row(i, rows.data() + i * w.cols());
  return rows;
}

// (columns, rows), from (rows, columns).
std::vector<float> transposed(const std::vector<float>& from, int64_t rows, int64_t cols) {
  std::vector<float> to(from.size());
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < cols; ++j)
      to[static_cast<size_t>(j * rows + i)] = from[static_cast<size_t>(i * cols + j)];
  return to;
}

std::vector<double> gram_of(const std::vector<float>& a, int64_t rank, int64_t cols) {
  std::vector<double> gram(static_cast<size_t>(rank * rank));
  for (int64_t i = 0; i < rank; ++i)
    for (int64_t j = 0; j <= i; ++j)
      gram[static_cast<size_t>(i * rank + j)] = gram[static_cast<size_t>(j * rank + i)] =
          dot(a.data() + i * cols, a.data() + j * cols, cols);
  return gram;
}

}  // namespace

void RowNorms::set(int64_t i, double own, const float* b, const double* projected,
                   const std::vector<double>& gram, int64_t rank) {
  double crossed = 0, added = 0;
  for (int64_t j = 0; j < rank; ++j) {
    double sum = 0;
    for (int64_t k = 0; k < rank; ++k) sum += gram[static_cast<size_t>(j * rank + k)] * b[k];
    crossed += b[j] * projected[j];
    added += b[j] * sum;
  }
  const auto at = static_cast<size_t>(i);
  own_[at] = own;
  crossed_[at] = crossed;
  added_[at] = added;
}

// A w by the kernels of products, whose rows do not depend on others.
RowNorms RowNorms::of_rows(ThreadPool& pool, const KernelTable& kernels, const PackedTensor& w,
                           const PackedTensor& a, const PackedTensor& b) {
  RowNorms norms(w.rows());
  const int64_t k = w.cols(), rank = a.rows(), width = padded_rows(rank);
  const std::vector<double> gram = gram_of(all_rows(a), rank, k);
  const auto matmul = kernels.matmul[static_cast<size_t>(a.dtype())];
  const size_t each = (static_cast<size_t>(kernels.scratch_nbytes) + 63) / 64 * 64;
  const Buffer scratch(each * static_cast<size_t>(pool.size()), "adapters", "model");
  pool.run([&](Team& team) {
    std::vector<float> rows(static_cast<size_t>(kRowsAtOnce * k)), row_b(static_cast<size_t>(rank));
    std::vector<float> projected(static_cast<size_t>(kRowsAtOnce * width));
    std::vector<double> u(static_cast<size_t>(rank));
    team.for_each((w.rows() + kRowsAtOnce - 1) / kRowsAtOnce, 1, [&](int64_t begin, int64_t end) {
      for (int64_t first = begin * kRowsAtOnce; first < std::min(end * kRowsAtOnce, w.rows());
           first += kRowsAtOnce) {
        const int64_t n = std::min(kRowsAtOnce, w.rows() - first);
        for (int64_t i = 0; i < n; ++i)
          w.dequantize_row(first + i, rows.data() + i * k, team.copy());
        matmul({.tiles = a.data(team.copy()),
                .k = k,
                .acts = nullptr,
                .x = rows.data(),
                .x_stride = k,
                .n_rows = n,
                .y = projected.data(),
                .y_stride = width,
                .prefetch = prefetches(),
                .scratch = scratch.data() + each * static_cast<size_t>(team.rank())},
               0, a.tiles());
        for (int64_t i = 0; i < n; ++i) {
          const float* row = rows.data() + i * k;
          std::copy_n(projected.data() + i * width, rank, u.data());
          b.dequantize_row(first + i, row_b.data(), team.copy());
          norms.set(first + i, dot(row, row, k), row_b.data(), u.data(), gram, rank);
        }
      }
    });
  });
  return norms;
}

RowNorms RowNorms::of_columns(const PackedTensor& w, const PackedTensor& a, const PackedTensor& b) {
  const int64_t n = w.cols(), k = w.rows(), rank = a.rows();
  RowNorms norms(n);
  const std::vector<float> rows = transposed(all_rows(w), k, n),
                           inputs = transposed(all_rows(b), k, rank),
                           outputs = transposed(all_rows(a), rank, n);
  const std::vector<double> gram = gram_of(inputs, rank, k);
  std::vector<double> u(static_cast<size_t>(rank));
  for (int64_t i = 0; i < n; ++i) {
    const float* row = rows.data() + i * k;
    for (int64_t j = 0; j < rank; ++j)
      u[static_cast<size_t>(j)] = dot(inputs.data() + j * k, row, k);
    norms.set(i, dot(row, row, k), outputs.data() + i * rank, u.data(), gram, rank);
  }
  return norms;
}

RowNorms RowNorms::of_table(ThreadPool& pool, const PackedTensor& w, const PackedTensor& table,
                            const PackedTensor& b) {
  const int64_t n = w.cols(), rank = table.cols(), n_tokens = w.rows();
  // Of a part: w.w of each value, A w of each, A A^T.
  const int64_t floats = n + rank * n + rank * rank;
  std::vector<double> sums(static_cast<size_t>(kTableParts * floats));
  pool.run([&](Team& team) {
    std::vector<float> row(static_cast<size_t>(n)), a(static_cast<size_t>(rank));
    team.for_each(kTableParts, 1, [&](int64_t begin, int64_t end) {
      for (int64_t part = begin; part < end; ++part) {
        double *own = sums.data() + part * floats, *projected = own + n,
               *gram = projected + rank * n;
        const int64_t last = n_tokens * (part + 1) / kTableParts;
        for (int64_t t = n_tokens * part / kTableParts; t < last; ++t) {
          w.dequantize_row(t, row.data(), team.copy());
          table.dequantize_row(t, a.data(), team.copy());
          for (int64_t i = 0; i < n; ++i) own[i] += static_cast<double>(row[i]) * row[i];
          for (int64_t j = 0; j < rank; ++j) {
            for (int64_t i = 0; i < n; ++i)
              projected[j * n + i] += static_cast<double>(a[j]) * row[i];
            for (int64_t i = 0; i < rank; ++i)
              gram[j * rank + i] += static_cast<double>(a[j]) * a[i];
          }
        }
      }
    });
  });
  for (int64_t part = 1; part < kTableParts; ++part)
    for (int64_t i = 0; i < floats; ++i)
      sums[static_cast<size_t>(i)] += sums[static_cast<size_t>(part * floats + i)];
  RowNorms norms(n);
  const std::vector<double> gram(sums.begin() + n + rank * n, sums.begin() + floats);
  const std::vector<float> outputs = all_rows(b);
  std::vector<double> u(static_cast<size_t>(rank));
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < rank; ++j)
      u[static_cast<size_t>(j)] = sums[static_cast<size_t>(n + j * n + i)];
    norms.set(i, sums[static_cast<size_t>(i)], outputs.data() + i * rank, u.data(), gram, rank);
  }
  return norms;
}

}  // namespace pyflow
