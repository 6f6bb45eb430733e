// Blocks of our own for weights whose scales blocks do not hold: of these a row has one factor more,
// by which products are multiplied; and blocks for columns in another order (core/tensor.h,
// CompactRows).
#pragma once

#include <memory>
#include <vector>

#include "quant/foreign/codes.h"
#include "quant/foreign/integers.h"

namespace pyflow::quant {

// NVFP4 of codes LowFirst and scales of a byte: the factor is the scale for all. Q8_0 of codes that
// are signed bytes, with one scale a row. ShapeError: another matrix.
std::shared_ptr<const CompactRows> compact_codes(const CodeRows::Matrix& matrix, DType dtype);

// Blocks of a type of integers.h. Columns are sorted by their groups, if these do not follow each
// other; rows that have one scale have it as their factor if by_rows, and Q8_B32 is then one of the
// types too. ShapeError: another matrix.
std::shared_ptr<const CompactRows> compact_integers(const IntegerRows::Matrix& matrix, DType dtype,
                                                    bool by_rows);

// Rows of blocks in a file that have a scale beside them, one for all or one for each of equal parts
// (experts): rows of F32, and compact ones whose factors are the scales.
struct ScaledBlocks {
  DType dtype = DType::NVFP4;
  int64_t rows = 0, cols = 0;
  std::span<const uint8_t> blocks, scales;  // F32
};
std::shared_ptr<const MadeRows> scaled_rows(const ScaledBlocks& blocks);

}  // namespace pyflow::quant
