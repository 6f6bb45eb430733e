// Weights into the blocks of a format.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "kernels/dispatch.h"

namespace pyflow {

// Encodes rows of floats. The same weights give the same bytes on every instruction set, in
// whatever pieces and by whichever thread they are encoded.
class Encoder {
 public:
  // Rows have n_cols weights, a positive multiple of the format's block. importance: by how much a
  // squared error in each column counts, n_cols numbers from 0 to 1e30 that outlive the encoder;
  // null: all alike. Throws ShapeError, UnsupportedError.
  Encoder(DType dtype, int64_t n_cols, const float* importance = nullptr,
          const KernelTable& table = kernel_table());

  size_t row_bytes() const { return row_bytes_; }

  // n_rows rows one after the other, into n_rows * row_bytes() bytes. Throws UnsupportedError for a
  // weight that is not finite, or too large for the format's f16 (65504), naming its row, of which
  // the first is `first_row`, and its column. Threads may encode different rows at the same time.
  void encode(const float* x, int64_t n_rows, int64_t first_row, uint8_t* out) const;

 private:
  DType dtype_;
  int64_t n_cols_;
  const float* importance_;
  const KernelTable& table_;
  size_t row_bytes_;
};

}  // namespace pyflow
