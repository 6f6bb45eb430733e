// Rows whose columns members have some each of, and how these travel.
//
// What the next product would round anyway travels rounded, by the member whose columns these are:
// rounding looks at 32 values of one row at most, so bits are those of one member. Int8 columns are
// those of an ActBlock without its sums, which the receiver makes again:
//
//   Int8, 36 bytes for 32 columns   q[32] i8 | scale f32
//   Bf16,  2 bytes for one          the upper half of the f32, as panels have it
//   F32,   4 bytes for one
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/table.h"
#include "model/cut.h"

namespace pyflow {

enum class Form : uint8_t { F32, Bf16, Int8 };

inline constexpr int64_t kWireBlock = 32;  // columns with a scale of their own
inline constexpr int64_t kWireNbytes = kWireBlock + static_cast<int64_t>(sizeof(float));

// Of so many columns; those of Int8 begin with a block.
inline int64_t wire_nbytes(Form form, const Share& columns) {
  const int64_t n = columns.size();
  if (form == Form::F32) return n * static_cast<int64_t>(sizeof(float));
  if (form == Form::Bf16) return n * static_cast<int64_t>(sizeof(uint16_t));
  return (n + kWireBlock - 1) / kWireBlock * kWireNbytes;
}
// Of all members.
int64_t wire_nbytes(Form form, const Shares& columns);

// Whether the columns of each member are whole blocks, but for the last ones of all.
bool in_wire_blocks(const Shares& columns);

// A member's columns, which travel whole, or in halves: the first one may go before the second one
// is computed. No block of activations has columns of both.
enum class Half : uint8_t { Whole, First, Second };
inline Share half_of(const Share& own, Half half) {
  if (half == Half::Whole) return own;
  const int64_t middle = own.begin + own.size() / 2;
  const int64_t end = std::min(own.end, (middle + kActBlock - 1) / kActBlock * kActBlock);
  return half == Half::First ? Share{own.begin, end} : Share{end, own.end};
}

struct SharedRows {
  float* rows;
  int64_t stride, n_rows;
  const Shares* columns;
  int64_t n_bf16 = 0;        // rows, the first ones, that travel as bf16
  ActBlock* acts = nullptr;  // where the others arrive as Int8; null: as F32
  // Where acts lie in several parts, which follow each other: the first row of each, and the end.
  std::span<const int32_t> parts = {};
  Half half = Half::Whole;

  SharedRows only(Half one) const {
    SharedRows rows = *this;
    rows.half = one;
    return rows;
  }
  Form form(int64_t row) const { return row < n_bf16 ? Form::Bf16 : acts ? Form::Int8 : Form::F32; }
  // Of a member's columns: of all rows, and of those before one.
  int64_t nbytes(size_t member) const { return nbytes_before(member, n_rows); }
  int64_t nbytes_before(size_t member, int64_t row) const {
    const Share own = columns_of(member);
    const int64_t n = row < n_bf16 ? row : n_bf16;
    return n * wire_nbytes(Form::Bf16, own) +
           (row - n) * wire_nbytes(acts ? Form::Int8 : Form::F32, own);
  }

  // Writes this member's columns of a row, which become acts here too; reads those of another one.
  void pack(const KernelTable&, size_t member, int64_t row, uint8_t* to) const;
  void unpack(size_t member, int64_t row, const uint8_t* from) const;

 private:
  // Blocks of 64 columns of a row, `step` apart.
  struct Blocks {
    ActBlock* first;
    int64_t step;
  };
  Blocks blocks(int64_t row) const;
  int64_t n_columns() const { return columns->all.back().end; }
  Share columns_of(size_t member) const { return half_of(columns->all[member], half); }
};

}  // namespace pyflow
