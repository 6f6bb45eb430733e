// A named tensor inside somebody else's memory, as a checkpoint describes it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"

namespace pyflow {

class CompactRows;

// A matrix that other tensors of a file make up, row after row, while it is read: two that become
// blocks of one type, or a model that another program has quantized.
class MadeRows {
 public:
  virtual ~MadeRows() = default;
  // Rows [first, first + n) as bytes of the matrix's type. Any thread may call it. UnsupportedError:
  // what the file has there makes no row.
  virtual void read(int64_t first, int64_t n, uint8_t* out) const = 0;
  // Where in mapped files the rows come from.
  virtual std::vector<std::span<const uint8_t>> parts() const = 0;
  // The same matrix as products may take it, in fewer bytes; null: there is none.
  const CompactRows* compact() const { return compact_.get(); }
  void set_compact(std::shared_ptr<const CompactRows> rows) { compact_ = std::move(rows); }

 private:
  std::shared_ptr<const CompactRows> compact_;
};

// Rows of blocks, of another type, which stand for a matrix W:
//
//   W[r][order[j]] = factor(r) * rows[r][j]
//
// Its products are factor(r) * (rows[r] . x in that order).
class CompactRows : public MadeRows {
 public:
  virtual DType dtype() const = 0;
  virtual bool has_factors() const { return false; }
  virtual float factor(int64_t row) const = 0;
  // A column of W for each of the rows; none: their own.
  virtual std::span<const int32_t> order() const { return {}; }
};

struct TensorRecord {
  std::string name;
  DType dtype = DType::F32;       // that the values are read as
  bool is_double = false;         // stored as F64, and read as F32
  std::vector<int64_t> shape;     // outermost first: {rows, row length}; GGUF's order reversed
  uint64_t offset = 0;            // of the first byte in the file
  uint64_t nbytes = 0;            // checked against dtype, shape and file
  const uint8_t* data = nullptr;  // mapped; valid while the checkpoint lives
  // Stored as int8 codes, and read as Q8_0: a weight is code / divisor, of which there is one F32,
  // or one for each row. Null: another type.
  const uint8_t* divisors = nullptr;
  int64_t n_divisors = 0;
  // What makes its rows, if the file has it in another form; `data` and `nbytes` then mean nothing.
  const MadeRows* made = nullptr;
  uint32_t block_bytes() const {
    return is_double ? 8 : divisors ? info(dtype).block : info(dtype).block_bytes;
  }
  int64_t cols() const { return shape.empty() ? 1 : shape.back(); }
  int64_t rows() const {
    int64_t n = 1;
    for (size_t i = 0; i + 1 < shape.size(); ++i) n *= shape[i];
    return n;
  }
};

}  // namespace pyflow
