// Error feedback: how much the error of one column is to change the columns encoded after it.
//
// For inputs x with second moments H = E[x x^T] an error e in a row of weights costs e^T H e. With
// H = L L^T, L lower triangular, and columns encoded from last to first, that sum is least if
// column k, one by one, encodes
//
//   w_k + sum over j > k of e_j L_jk / L_kk,    e_j = w_j - (its value),
//
// which costs L_kk^2 * (rounding error)^2. So each error is pushed onto the columns not yet
// encoded, in proportion to how they correlate. This is "OPTQ/GPTQ" (Frantar et al., 2022) in the
// form of "QuIP" (Chee et al., 2023).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/buffer.h"
#include "core/thread_pool.h"
#include "encode/table.h"
#include "kernels/dispatch.h"

namespace pyflow {

// How second moments are stored: columns in groups of kWidth, of each group the lower triangle by
// rows, padded to whole steps of 16 columns: rows 16 t to 16 t + 15 have 16 (t + 1) floats. Moments
// between columns of different groups are not kept.
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
  // Floats of all groups; before a group; before step `step` of a group.
  int64_t size() const { return begin(n_groups() - 1) + floats(width(n_groups() - 1)); }
  int64_t begin(int64_t group) const { return group * floats(kWidth); }
  static int64_t row_begin(int64_t step) { return floats(kStep * step); }

 private:
  // Floats of the first n rows.
  static constexpr int64_t floats(int64_t n) { return n / kStep * (n / kStep + 1) / 2 * 256; }
  int64_t n_cols_;
};

class Feedback {
 public:
  // moments: shape.size() floats, sums over any number of rows. Throws FormatError unless they are
  // finite and, with a hundredth of their mean diagonal added to it, positive definite.
  Feedback(const float* moments, const Triangles& shape, ThreadPool* pool,
           const EncodeTable& table = encode_table(kernel_table()));

  const Triangles& shape() const { return shape_; }
  // The moments are h() times this.
  float unit(int64_t group) const { return units_[static_cast<size_t>(group)]; }
  // H_jk of a group, in its unit, for k < width.
  const float* h(int64_t group, int64_t j) const {
    return squares_.as<float>() + group * Triangles::kWidth * Triangles::kWidth +
           j * shape_.width(group);
  }
  // L_kk^2 of each column, and H_kk.
  const float* importance() const { return importance_.as<float>(); }
  const float* diagonal() const { return diagonal_.as<float>(); }
  // L_jk / L_kk for k < j, both columns counted from the first of the group.
  const float* row(int64_t group, int64_t j) const {
    return factors_.as<float>() + group * Triangles::kWidth * Triangles::kWidth +
           j * shape_.width(group);
  }

 private:
  void factor(int64_t group, const float* moments, ThreadPool* pool, const EncodeTable& table);
  // Copies a group's moments, scaled and damped, to squares_ and factors_.
  void load(int64_t group, const float* moments);

  Triangles shape_;
  Buffer squares_, factors_;  // H, and L_jk / L_kk: a square for each group
  Buffer importance_, diagonal_;
  std::vector<float> units_;
};

// The same for each block of columns alone, H_bb = L L^T. With the errors e of all other columns
// fixed, an error d in a block costs d^T H_bb d + 2 d^T sum H_bj e_j plus a constant. That is the
// cost, by H_bb alone, of the values x + d where x is the best value of the block,
//
//   x = w_b + H_bb^-1 sum over j outside of H_bj e_j.
class BlockFactors {
 public:
  // block: columns, a divisor of Triangles::kWidth and of the feedback's.
  BlockFactors(const Feedback& feedback, int64_t block);

  int64_t block() const { return block_; }
  // For the block that begins at `column`: L_kk^2; and by rows L_jk / L_kk (0 unless k < j),
  // H_bb^-1.
  const float* importance(int64_t column) const { return importance_.as<float>() + column; }
  const float* factors(int64_t column) const { return factors_.as<float>() + column * block_; }
  const float* inverse(int64_t column) const { return inverse_.as<float>() + column * block_; }

 private:
  int64_t block_;
  Buffer importance_, factors_, inverse_;
};

}  // namespace pyflow
