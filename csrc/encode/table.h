// The ops of encoding, compiled once per instruction set (isa.cpp) like the kernels, and with the
// same rules: they check nothing, cannot fail, and give the same bits from every table.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "kernels/table.h"
#include "quant/encoding.h"

namespace pyflow {

// Weights to encode, finite and at most 65504 in magnitude.
struct SearchArgs {
  const float* x;           // rows of n_cols, one after the other
  const float* importance;  // one per column, at most 1e30; null: 1 for each
  int64_t n_cols;           // a multiple of the block
  bool on_grid = true;      // also try the grids that would reproduce already quantized weights
};

// out[i][j] += sum over r < n of a[r][i] * b[r][j], for i < rows, j < columns.
struct OuterArgs {
  const float* a;
  int64_t a_stride;  // floats between rows
  const float* b;
  int64_t b_stride;
  int64_t n;
  float* out;
  int64_t out_stride;
  int64_t rows, columns;  // columns a multiple of 16
};

// Beam search over roundings: 4 rows x 4 candidates = 16 lanes; row r owns lanes 4r .. 4r+3. Arrays
// of floats and numbers are [n][16]. Backtrack from weight 0, lane 4r, the best of row r: if lane
// 4r + c is on the path at weight k, lane 4r + parents[k][4r + c] is at weight k + 1.
struct RoundArgs {
  float* x;             // targets; on return, what each was when its weight was rounded
  const float* w;       // the weights that errors are measured from
  const float* levels;  // even: [2][n][16], first level and step; else [n_levels][n][16]
  int64_t n_levels;     // at least 2
  bool even;
  const float* factors;  // [k][i]: how much of weight k's error is added to the target of i < k
  int64_t factors_stride;
  const float* importance;  // one per weight, of its squared rounding error
  int64_t n;                // weights
  int32_t* q;               // level of each
  int32_t* parents;         // 0 to 3
};

struct EncodeTable {
  // Scales and codes for blocks [begin, end) of the matrix, by weight format; null for plain
  // floats and for what is only read. A block's fields depend only on its own weights and their importance.
  void (*search[kDTypeCount])(const SearchArgs&, int64_t begin, int64_t end, quant::Fields* out);

  // Rounds weights to levels, last to first, for the least weighted sum of squares.
  void (*round)(const RoundArgs&);

  // Sums of outer products: one fma per row r, in ascending order.
  void (*add_outer)(const OuterArgs&);
};

// The table for the instruction set of these kernels.
const EncodeTable& encode_table(const KernelTable& kernels);

}  // namespace pyflow
