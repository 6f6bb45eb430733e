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
#include <vector>

#include "core/buffer.h"
#include "core/thread_pool.h"
#include "encode/table.h"
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
           const EncodeTable& table = encode_table(kernel_table()));

  const Triangles& shape() const { return shape_; }
  // What h() is of the moments' mean.
  float unit(int64_t group) const { return units_[static_cast<size_t>(group)]; }
  // H_jk of a group, in its unit, for k < width.
  const float* h(int64_t group, int64_t j) const {
    return squares_.as<float>() + group * Triangles::kWidth * Triangles::kWidth +
           j * shape_.width(group);
  }
  // L_kk^2 of each column, and H_kk.
  const float* importance() const { return importance_.as<float>(); }
  const float* diagonal() const { return diagonal_.as<float>(); }
  // L_jk / L_kk of k < j in j's group, both counted from its first column.
  const float* row(int64_t group, int64_t j) const {
    return factors_.as<float>() + group * Triangles::kWidth * Triangles::kWidth +
           j * shape_.width(group);
  }

 private:
  void factor(int64_t group, const float* moments, ThreadPool* pool, const EncodeTable& table);

  Triangles shape_;
  Buffer squares_, factors_;  // a square for each group
  Buffer importance_, diagonal_;
  std::vector<float> units_;
};

// Of each block of columns alone, H_bb = L L^T. Where all other columns are what they are, with
// errors e, an error d in a block costs d^T H_bb d + 2 d^T sum H_bj e_j and what does not depend on
// d: as much as values x + d cost, by H_bb alone, of what would be best for the block to hold,
//
//   x = w_b + H_bb^-1 sum over j outside of H_bj e_j.
class BlockFactors {
 public:
  // block: columns, a divisor of Triangles::kWidth and of the feedback's.
  BlockFactors(const Feedback& feedback, int64_t block);

  int64_t block() const { return block_; }
  // Of the block that begins with that column: L_kk^2; L_jk / L_kk for k < j, else 0, and H_bb^-1,
  // row by row.
  const float* importance(int64_t column) const { return importance_.as<float>() + column; }
  const float* factors(int64_t column) const { return factors_.as<float>() + column * block_; }
  const float* inverse(int64_t column) const { return inverse_.as<float>() + column * block_; }

 private:
  int64_t block_;
  Buffer importance_, factors_, inverse_;
};

}  // namespace pyflow
