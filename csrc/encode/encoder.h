// Weights into the blocks of a format.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "encode/feedback.h"
#include "encode/table.h"
#include "kernels/dispatch.h"

namespace pyflow {

inline constexpr float kLargestHalf = 65504.0f;  // of a weight, where it goes into a block

// What is left of a row after encoding, of which d is the difference: sums over its weights, those
// of squares weighed by the importance of their columns.
struct RowLoss {
  double squared = 0.0;   // of d^2
  double power = 0.0;     // of the squares of the weights themselves
  double absolute = 0.0;  // of |d|
  double largest = 0.0;   // |d|
};

// Encodes rows of floats. The same weights give the same bytes on every instruction set, in
// whatever pieces and by whichever thread they are encoded.
class Encoder {
 public:
  // Rows have n_cols weights, a positive multiple of the format's block. importance: by how much a
  // squared error in each column counts, n_cols numbers from 0 to 1e30 that outlive the encoder;
  // null: all alike. Throws ShapeError, UnsupportedError.
  Encoder(DType dtype, int64_t n_cols, const float* importance = nullptr,
          const EncodeTable& table = encode_table(kernel_table()));

  DType dtype() const { return dtype_; }
  int64_t n_cols() const { return n_cols_; }
  const float* importance() const { return importance_; }
  size_t row_bytes() const { return row_bytes_; }

  // n_rows rows one after the other, into n_rows * row_bytes() bytes. Throws UnsupportedError for a
  // weight that is not finite, or too large for the format's f16 (65504), naming its row, of which
  // the first is `first_row`, and its column. Threads may encode different rows at the same time.
  void encode(const float* x, int64_t n_rows, int64_t first_row, uint8_t* out) const;

 private:
  friend void recode(DType, const uint8_t*, int64_t, int64_t, const Encoder&, const Feedback&,
                     const BlockFactors&, uint8_t*, RowLoss*);
  // Throws as encode does.
  void check(const float* x, int64_t n_rows, int64_t first_row) const;

  DType dtype_;
  int64_t n_cols_;
  const float* importance_;
  const EncodeTable& table_;
  size_t row_bytes_;
};

// n_rows rows of a format as those of the encoder's, at `out`, and what each of them lost. Throws
// as Encoder::encode does.
void recode(DType from, const uint8_t* rows, int64_t n_rows, int64_t first_row, const Encoder& to,
            uint8_t* out, RowLoss* losses);

// The same of blocks, where columns make up for the errors of others; the encoder's importance is
// not looked at. blocks: of the format's. A row's squared loss is d^T H d, its power that of H's
// diagonal. Rows that lose less when encoded by the importance of H's diagonal alone are.
void recode(DType from, const uint8_t* rows, int64_t n_rows, int64_t first_row, const Encoder& to,
            const Feedback& feedback, const BlockFactors& blocks, uint8_t* out, RowLoss* losses);

}  // namespace pyflow
