// The blocks of several rows in the same columns, encoded with error feedback inside the block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "encode/table.h"

namespace pyflow {

inline constexpr int64_t kRowsAtOnce = 32;  // rows for which factors are read once

struct BlockColumn {
  int64_t n_rows;           // at most kRowsAtOnce
  const float* targets;     // n_rows x block: what to encode before any error of the block itself
  const float* w;           // n_rows x block: what errors are measured from
  const float* importance;  // of the block's columns
  const float* factors;     // [k][i]: what an error of column k adds to column i before it
  int64_t factors_stride;
  int turns;     // searches for scales
  bool on_grid;  // of the targets, see SearchArgs
  uint8_t* out;
  size_t out_stride;
  float* values;  // n_rows x block: the values of `out`
  double* least;  // per row, the cost of the block in `out`: only cheaper blocks replace it
};

// The first search for scales is for the targets, further ones for what the targets became while
// the weights were rounded. Each row keeps its cheapest block. Not for plain floats.
void encode_column(const EncodeTable& table, DType dtype, const BlockColumn& c);

}  // namespace pyflow
