// Rows of a matrix as they lie in a file: cuts of a tensor, transposed ones, int8 codes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/tensor.h"

namespace pyflow {

// Segments (start, count) of a tensor's rows, none: all. A negative start makes rows of zeros.
using Segments = std::vector<std::pair<int64_t, int64_t>>;

// n weights, a multiple of the block, as f32. Throws UnsupportedError, which begins with `where`,
// for an F64 that rounds to no finite f32.
void read_values(const std::string& where, const TensorRecord& r, const uint8_t* src, int64_t n,
                 float* out);

struct StoredRows {
  const TensorRecord& record;
  const Segments& segments;
  bool transposed;          // the segments count columns
  int64_t step = 1;         // between rows of a segment
  int64_t first_input = 0;  // of a transposed one: the row where it begins

  // The tensor's row for a row of the cut; for a transposed tensor, its column. -1: zeros.
  int64_t file_row(int64_t row) const;

  // Copies n rows of `cols` weights from row `first` of the cut on, as bytes of the file.
  void copy(int64_t first, int64_t n, int64_t cols, uint8_t* to) const;
  // What the first n rows of the cut are multiplied by; not those of zeros.
  void factors(const CompactRows& compact, int64_t n, float* to) const;
  // Weights of such rows of a transposed tensor whose blocks lie across them.
  void decode(int64_t first, int64_t n, int64_t cols, float* to) const;
  // Of int8 codes, copied before: their blocks of Q8_0. A row has one scale, F16(1 / divisor),
  // within 2^-11 of it or 2^-25.
  void to_blocks(const uint8_t* codes, int64_t first, int64_t n, uint8_t* blocks) const;
};

}  // namespace pyflow
