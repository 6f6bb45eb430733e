// Weights that other programs have quantized to codes of a table: FP8, NF4, FP4.
//
//   value = table[code] * scale(row / row_block, column / group_size) * factor
//
// each operation rounded to F32. Blocks of our own hold codes and scales as they are.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "core/tensor.h"
#include "quant/foreign/scales.h"

namespace pyflow::quant {

class CodeRows : public MadeRows {
 public:
  struct Matrix {
    // F32; or BF16, if it holds all values; or blocks of such codes (can_be).
    DType dtype = DType::F32;
    int64_t rows = 0, cols = 0;
    // Bytes, or nibbles of the matrix as one line: HighFirst is bitsandbytes', LowFirst NVFP4's.
    enum class Form : uint8_t { Bytes, HighFirst, LowFirst };
    Form form = Form::Bytes;
    std::span<const uint8_t> codes;
    CodeTable table{};
    Scales scales;
    int64_t row_block = 1, group_size = 1;
    float factor = 1;
  };
  explicit CodeRows(const Matrix& matrix) : m_(matrix) {}

  // Whether blocks of the matrix's type have its codes, and one scale each.
  static bool can_be(const Matrix& matrix);

  void read(int64_t first, int64_t n, uint8_t* out) const override;
  std::vector<std::span<const uint8_t>> parts() const override;

 private:
  Matrix m_;
};

}  // namespace pyflow::quant
