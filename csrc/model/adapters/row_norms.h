// Norms of the rows of W + s B A for any s (DoRA, Liu et al. 2024): of row i with delta d = b_i A,
//   |w + s d|^2 = w.w + 2 s w.d + s^2 d.d,   w.d = b_i . (A w),   d.d = b_i . (A A^T) b_i.
// Where W is an embedding, a row is a value of all tokens: a column of the table.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "core/thread_pool.h"
#include "kernels/table.h"
#include "quant/packed_tensor.h"

namespace pyflow {

class RowNorms {
 public:
  RowNorms() = default;
  // Of W with A (rank x columns) and B (rows x rank); the same bits on any number of threads.
  static RowNorms of_rows(ThreadPool& pool, const KernelTable& kernels, const PackedTensor& w,
                          const PackedTensor& a, const PackedTensor& b);
  // Of the rows of W^T, which stands beside b^T (rank x rows of W) and a^T (columns of W x rank).
  static RowNorms of_columns(const PackedTensor& w, const PackedTensor& a, const PackedTensor& b);
  // Of an embedding: A is a row of `table` for each token, B (n_embd x rank).
  static RowNorms of_table(ThreadPool& pool, const PackedTensor& w, const PackedTensor& table,
                           const PackedTensor& b);

  // Of so many rows.
  static size_t nbytes(int64_t n) { return static_cast<size_t>(n) * 3 * sizeof(double); }
  int64_t size() const { return static_cast<int64_t>(own_.size()); }
  // The square of a norm; 0 where W and s B A cancel each other but for rounding.
  double squared(int64_t row, double s) const {
    // A w has errors of 2^-24: below this part of its terms the sum has no three digits.
    constexpr double kRest = 1e-5;
    const auto i = static_cast<size_t>(row);
    const double added = s * s * added_[i], sum = own_[i] + 2 * s * crossed_[i] + added;
    return sum > kRest * (own_[i] + added) ? sum : 0;
  }

 private:
  explicit RowNorms(int64_t n)
      : own_(static_cast<size_t>(n)), crossed_(own_.size()), added_(own_.size()) {}
  // Of row i, from B's row, A w and A A^T.
  void set(int64_t i, double own, const float* b, const double* projected,
           const std::vector<double>& gram, int64_t rank);

  std::vector<double> own_, crossed_, added_;  // w.w, w.d, d.d
};

}  // namespace pyflow
