// A weight matrix in the one geometry that all kernels read.
//
// Sixteen output rows are a tile. A tile is a run of units along k, each unit as the format's
// header draws it (quant/formats/): 64 k for formats with blocks of 32, 256 k for blocks of 256, 1
// k for F32, F16 and BF16. Tiles and units start on 64-byte borders (units of plain floats: tiles
// only). Rows and columns that fill the last tile and unit up are zeros with zero scales. The
// file's integers and scales are kept as they are, so a row can be taken out again byte for byte.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "core/buffer.h"
#include "core/dtype.h"
#include "core/thread_pool.h"

namespace pyflow {

// Packs tiles [tile_begin, tile_end) of a rows x cols matrix; src is the whole matrix as in the
// file, row after row, dst the whole packed tensor. Threads may pack disjoint ranges at the same
// time.
void pack_tiles(const uint8_t* src, DType dtype, int64_t rows, int64_t cols, int64_t tile_begin,
                int64_t tile_end, uint8_t* dst);

// The values of n weights (a multiple of the block), by the format's definition, each operation
// rounded on its own.
void dequantize(DType dtype, const uint8_t* src, int64_t n, float* out);

// Whether activations meet such weights in fifteen bits: a row as the sum of two in eight, the
// second one of what the first leaves.
bool fine_inputs(DType dtype);

// Whether activations meet such weights as f32: plain floats, and codes of floats with a scale.
bool float_inputs(DType dtype);

// Bytes of a row of cols weights in the file. Throws ShapeError unless cols is a positive multiple
// of the block and below 2^31.
size_t row_bytes(DType dtype, int64_t cols);

class PackedTensor {
 public:
  PackedTensor() = default;
  // A shape; its tiles are nowhere yet. Throws ShapeError.
  PackedTensor(DType dtype, int64_t rows, int64_t cols);
  // The tiles are to lie here: nbytes() of memory on a 64-byte border, which outlive the tensor.
  // Copies of them lie `stride` bytes apart.
  void place(uint8_t* memory, size_t stride = 0) {
    data_ = memory;
    stride_ = stride;
  }
  // Packs on this thread, into memory of its own. Throws ShapeError, ResourceError.
  static PackedTensor pack(const uint8_t* src, int64_t rows, int64_t cols, DType dtype);

  static int64_t tile_count(int64_t rows) { return (rows + 15) / 16; }
  static size_t packed_bytes(DType dtype, int64_t rows, int64_t cols);

  void pack_tiles(const uint8_t* src, int64_t tile_begin, int64_t tile_end) {
    pyflow::pack_tiles(src, dtype_, rows_, cols_, tile_begin, tile_end, data_);
  }

  // The same of one tile, from its own rows alone.
  void pack_tile(const uint8_t* src, int64_t tile) {
    const auto tile_bytes = nbytes_ / static_cast<size_t>(tiles());
    pyflow::pack_tiles(src, dtype_, std::min<int64_t>(16, rows_ - 16 * tile), cols_, 0, 1,
                       data_ + static_cast<size_t>(tile) * tile_bytes);
  }

  // Makes n bytes of a copy from the first one.
  void copy(size_t copy, size_t at, size_t n) {
    std::memcpy(data_ + copy * stride_ + at, data_ + at, n);
  }

  // The same of all copies, mostly by threads near each.
  void copy_all(size_t n_copies, Team& team);

  DType dtype() const { return dtype_; }
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  int64_t tiles() const { return tile_count(rows_); }
  const uint8_t* data(size_t copy = 0) const { return data_ + copy * stride_; }
  size_t nbytes() const { return nbytes_; }

  // What products take the weights for: row r has factors[r], one for each row of a tile, and column
  // j is order[j] of the input. Both outlive the tensor; null: 1, and j.
  void take_for(const float* factors, const std::vector<int32_t>* order) {
    factors_ = factors;
    order_ = order;
  }
  const float* factors() const { return factors_; }
  const std::vector<int32_t>* order() const { return order_; }

  // cols() floats, equal to dequantize() of the file's row, times its factor and in order.
  void dequantize_row(int64_t row, float* out, size_t copy = 0) const;
  // The file's bytes of a row: row_bytes(dtype(), cols()) of them.
  void unpack_row(int64_t row, uint8_t* out) const;

 private:
  DType dtype_ = DType::F32;
  int64_t rows_ = 0, cols_ = 0;
  size_t nbytes_ = 0, stride_ = 0;
  uint8_t* data_ = nullptr;
  const float* factors_ = nullptr;
  const std::vector<int32_t>* order_ = nullptr;
  Buffer own_;
};

}  // namespace pyflow
