// Encodes weights as blocks of a format.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"
#include "encode/feedback.h"
#include "encode/table.h"
#include "kernels/dispatch.h"
#include "quant/packed_tensor.h"

namespace pyflow {

inline constexpr float kLargestHalf = 65504.0f;  // the largest weight of a block

// The loss of a row by encoding: sums over its weights w and their errors d, weighed by the
// importance of the columns if squared.
struct RowLoss {
  double squared = 0.0;   // sum of d^2
  double power = 0.0;     // sum of w^2
  double absolute = 0.0;  // sum of |d|
  double largest = 0.0;   // largest |d|
};

// Rows of a format, one after the other.
struct SourceRows {
  DType dtype;
  const uint8_t* data;
  int64_t n_rows;
  int64_t first_row;  // number of the first one, for errors
  const uint8_t* row(int64_t r, int64_t n_cols) const {
    return data + static_cast<size_t>(r) * row_bytes(dtype, n_cols);
  }
};

// Whether there is an encoder for the format; files of others can be read.
bool can_encode(DType dtype);

// Encodes rows of floats. The same weights give the same bytes with every instruction set, however
// the rows are split and whichever threads encode them.
class Encoder {
 public:
  // n_cols: weights of a row, a positive multiple of the format's block. importance: n_cols factors
  // of squared errors, 0 to 1e30, which outlive the encoder; null: 1 for each. Throws ShapeError,
  // and UnsupportedError where there is no encoder.
  Encoder(DType dtype, int64_t n_cols, const float* importance = nullptr,
          const EncodeTable& table = encode_table(kernel_table()));

  DType dtype() const { return dtype_; }
  int64_t n_cols() const { return n_cols_; }
  const float* importance() const { return importance_; }
  size_t row_bytes() const { return row_bytes_; }

  // n_rows rows one after the other, into n_rows * row_bytes() bytes. Throws UnsupportedError,
  // naming row and column, for a weight that is not finite or too large for the format's f16
  // (65504); first_row is the first row's number there. Threads may encode different rows at once.
  void encode(const float* x, int64_t n_rows, int64_t first_row, uint8_t* out) const;

 private:
  friend void recode(const SourceRows&, const Encoder&, const Feedback&, const BlockFactors&,
                     uint8_t*, RowLoss*);
  // Throws as encode does.
  void check(const float* x, int64_t n_rows, int64_t first_row) const;

  DType dtype_;
  int64_t n_cols_;
  const float* importance_;
  const EncodeTable& table_;
  size_t row_bytes_;
};

// Encodes rows again, at `out`, and measures what each of them loses. Throws as Encoder::encode
// does.
void recode(const SourceRows& from, const Encoder& to, uint8_t* out, RowLoss* losses);

// The same by GPTQ; the encoder's importance is ignored. blocks: those of the encoder's format. A
// row's squared loss is d^T H d, its power is that of H's diagonal. Rows that lose less when
// encoded by the importance of H's diagonal alone are encoded so.
void recode(const SourceRows& from, const Encoder& to, const Feedback& feedback,
            const BlockFactors& blocks, uint8_t* out, RowLoss* losses);

}  // namespace pyflow
