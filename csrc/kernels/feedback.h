// What an error in one column of a matrix is to change in the columns that are encoded after it.
//
// For inputs x with second moments H = E[x x^T] an error e in a row of weights costs e^T H e. With
// H = L L^T, L lower triangular, and columns encoded from the last to the first, that sum is
// least, column by column, where column k encodes
//
//   w_k + sum over j > k of e_j L_jk / L_kk,    e_j = w_j - (its value), and costs L_kk^2 *
//   (rounding)^2.
//
// So the error of a column leaves by what the next ones become, as far as they go together. That is
// the rounding of "OPTQ/GPTQ" (Frantar et al., 2022), as "QuIP" (Chee et al., 2023) writes it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/buffer.h"
#include "core/thread_pool.h"
#include "kernels/dispatch.h"

namespace pyflow {

// Second moments as they are kept: columns in groups of kWidth, of each group the lower triangle,
// row by row, in steps of 16 columns: rows 16 t to 16 t + 15 have 16 (t + 1) floats. What columns
// of different groups have in common is left out.
class Triangles {
 public:
  static constexpr int64_t kWidth = 2048, kStep = 16;

  // n_cols: a positive multiple of kStep.
  explicit Triangles(int64_t n_cols) : n_cols_(n_cols) {}
  int64_t n_cols() const { return n_cols_; }
  int64_t n_groups() const { return (n_cols_ + kWidth - 1) / kWidth; }
  int64_t width(int64_t group) const {
    return n_cols_ - group * kWidth < kWidth ? n_cols_ - group * kWidth : kWidth;
  }
  // Floats of all groups; of those before a group; of those before 16 rows of one.
  int64_t size() const { return begin(n_groups() - 1) + floats(width(n_groups() - 1)); }
  int64_t begin(int64_t group) const { return group * floats(kWidth); }
  static int64_t row_begin(int64_t step) { return floats(kStep * step); }

 private:
  // Of the first n rows.
  static constexpr int64_t floats(int64_t n) { return n / kStep * (n / kStep + 1) / 2 * 256; }
  int64_t n_cols_;
};

class Feedback {
 public:
  // moments: shape.size() floats, sums over any number of rows. Throws FormatError unless they are
  // finite and positive definite once a hundredth of their mean diagonal is added to that.
  Feedback(const float* moments, const Triangles& shape, ThreadPool* pool,
           const KernelTable& table = kernel_table());

  const Triangles& shape() const { return shape_; }
  // L_kk^2 of each column, and H_kk.
  const float* importance() const { return importance_.as<float>(); }
  const float* diagonal() const { return diagonal_.as<float>(); }
  // L_jk / L_kk of k < j in j's group, both counted from its first column.
  const float* row(int64_t group, int64_t j) const {
    return factors_.as<float>() + group * Triangles::kWidth * Triangles::kWidth +
           j * shape_.width(group);
  }

 private:
  void factor(int64_t group, const float* moments, ThreadPool* pool, const KernelTable& table);

  Triangles shape_;
  Buffer factors_;  // a square for each group
  Buffer importance_, diagonal_;
};

}  // namespace pyflow
