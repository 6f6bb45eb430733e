// Weights that other programs have quantized to integers: GPTQ, AWQ, compressed-tensors.
//
//   value = scale(row, group) * (code - zero(row, group))
//
// Codes of 2 to 8 bits lie in words of 32 bits, and where they have blocks of our own they become
// such without loss: the scale is the block's, and code - zero the integer.
//
//   code - zero      becomes    because a value there is
//   -2 ..   1        Q2_B32     d q + m, with m = -2 d
//   -4 ..   3        Q3_B32     d q + m, with m = -4 d
//   -8 ..   7        Q4_0       d (q - 8)
//  -16 ..  15        Q5_0       d (q - 16)
// -128 .. 127        Q8_0       d q
//  any               F32        rounded once
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "core/dtype.h"
#include "core/tensor.h"
#include "quant/foreign/scales.h"

namespace pyflow::quant {

// Which group of scales a column has.
struct Groups {
  int64_t size = 1;                  // of columns that follow each other, if `of` is empty
  std::span<const uint8_t> of = {};  // an int32 for each column
  int64_t count = 1;

  int64_t at(int64_t column) const {
    if (of.empty()) return column / size;
    const auto group = load<uint32_t>(of.data() + column * 4);
    return group < count ? group : count - 1;  // was checked, but may change while it is mapped
  }
};

// Lines of packed integers: rows of a matrix, or columns, or groups.
struct PackedIntegers {
  // Stream: integer i of a line has the bits from i * bits on, in words from their low end. Words:
  // the same, but no integer crosses into the next word. Awq: of four bits, in each word the
  // columns 0, 2, 4, 6, 1, 3, 5, 7. Bytes: of eight bits, signed; their code is 128 more.
  enum class Order : uint8_t { Stream, Words, Awq, Bytes };
  std::span<const uint8_t> data;
  int bits = 4;
  Order order = Order::Stream;
  int64_t per_line = 0, per_word = 1;  // words (Bytes: bytes) from one line or word to the next

  int code(int64_t line, int64_t i) const;
  template <Order kOrder>
  int code(int64_t line, int64_t i) const;
  // n integers of each of n_lines lines, where none crosses into another word; lines of the result
  // are `stride` apart.
  void whole_words(int64_t line, int64_t n_lines, int64_t n, int64_t stride, int16_t* out) const;
  // Bytes that lines of n integers need; 0 if 2^62 or more, or a number is out of range.
  uint64_t needs(int64_t lines, int64_t n) const;
};

class IntegerRows : public MadeRows {
 public:
  struct Matrix {
    DType dtype = DType::F32;
    int64_t rows = 0, cols = 0;
    PackedIntegers codes;
    bool by_column = false;     // a line of codes is a column, not a row
    PackedIntegers zeros;       // a line is a group; no data: `zero` everywhere
    bool zeros_by_row = false;  // a line is a row, not a group
    int zero = 0;               // is added to each
    Scales scales;
    Groups groups;
    // Of compact rows (compact.h): the columns in another order, none for their own; scales are
    // factors of rows, and that of each block is 1.
    std::vector<int32_t> order = {};
    bool has_factors = false;

    int zero_at(int64_t row, int64_t group) const {
      if (zeros.data.empty()) return zero;
      return zero + (zeros_by_row ? zeros.code(row, group) : zeros.code(group, row));
    }
    int64_t group_of(int64_t k) const {
      return groups.at(order.empty() ? k : order[static_cast<size_t>(k)]);
    }
  };
  explicit IntegerRows(const Matrix& matrix) : m_(matrix) {}

  // Whether blocks of the type are made here.
  static bool holds(DType dtype);
  const Matrix& matrix() const { return m_; }

  void read(int64_t first, int64_t n, uint8_t* out) const override;
  std::vector<std::span<const uint8_t>> parts() const override;

 private:
  // The codes of n rows, which are `stride` apart in the result.
  void unpack(int64_t first, int64_t n, int64_t stride, int16_t* out) const;

  Matrix m_;
};

}  // namespace pyflow::quant
