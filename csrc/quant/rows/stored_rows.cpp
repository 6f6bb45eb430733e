#include "quant/rows/stored_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <span>
#include <vector>

#include "core/errors.h"
#include "quant/half.h"
#include "quant/packed_tensor.h"

namespace pyflow {
namespace {

constexpr auto kNone = static_cast<size_t>(int64_t{-1});  // a row of zeros
constexpr int64_t kAtOnce = 16;

// Neighbours are read at once, for they may share words of the file.
void read_made(const MadeRows& made, std::span<const size_t> from, size_t nbytes, uint8_t* to) {
  for (size_t i = 0, n; i < from.size(); i += n) {
    for (n = 1; i + n < from.size() && from[i + n] == from[i] + n; ++n) {
    }
    if (from[i] != kNone)
      made.read(static_cast<int64_t>(from[i]), static_cast<int64_t>(n), to + i * nbytes);
  }
}

void put_scale(const TensorRecord& r, size_t row, uint8_t* block) {
  float divisor;
  std::memcpy(&divisor, r.divisors + (r.n_divisors == 1 ? 0 : row) * sizeof divisor,
              sizeof divisor);
  const uint16_t scale = quant::to_half(1 / divisor);
  std::memcpy(block, &scale, sizeof scale);
}

}  // namespace

void read_values(const std::string& where, const TensorRecord& r, const uint8_t* src, int64_t n,
                 float* out) {
  if (!r.is_double) return dequantize(r.dtype, src, n, out);
  constexpr double kBeyond = 0x1.ffffffp127;  // half a step above the largest f32
  for (int64_t i = 0; i < n; ++i) {
    double x;
    std::memcpy(&x, src + static_cast<size_t>(i) * sizeof x, sizeof x);
    if (std::fabs(x) >= kBeyond && std::isfinite(x)) {
      std::array<char, 32> text{};
      std::snprintf(text.data(), text.size(), "%g", x);
      throw UnsupportedError(where +
                             "expected values within the range of F32, up to 3.4e+38, found " +
                             text.data() + " in F64");
    }
    out[i] = static_cast<float>(x);
  }
}

int64_t StoredRows::file_row(int64_t row) const {
  for (const auto& [start, count] : segments) {
    if (row < count) return start < 0 ? -1 : start + row * step;
    row -= count;
  }
  return row;  // no segments: all rows
}

void StoredRows::factors(const CompactRows& compact, int64_t n, float* to) const {
  for (int64_t row = 0; row < n; ++row)
    if (const int64_t from = file_row(row); from >= 0) to[row] = compact.factor(from);
}

void StoredRows::copy(int64_t first, int64_t n, int64_t cols, uint8_t* to) const {
  const size_t value = record.block_bytes();
  const size_t width = static_cast<size_t>(cols / info(record.dtype).block);
  const size_t nbytes = width * value, stride = static_cast<size_t>(record.cols()) * value;
  for (int64_t begin = 0; begin < n; begin += kAtOnce, to += kAtOnce * nbytes) {
    std::array<size_t, kAtOnce> from{};
    const auto count = static_cast<size_t>(std::min(n - begin, kAtOnce));
    for (size_t i = 0; i < count; ++i) {
      from[i] = static_cast<size_t>(file_row(first + begin + static_cast<int64_t>(i)));
      if (from[i] == kNone)
        std::memset(to + i * nbytes, 0, nbytes);
      else if (!transposed && !record.made)
        std::memcpy(to + i * nbytes, record.data + from[i] * nbytes, nbytes);
    }
    if (record.made) read_made(*record.made, std::span(from).first(count), nbytes, to);
    if (!transposed) continue;
    const uint8_t* data = record.data + static_cast<size_t>(first_input) * stride;
    for (size_t k = 0; k < width; ++k)  // columns side by side lie side by side
      for (size_t i = 0; i < count; ++i)
        if (from[i] != kNone)
          std::memcpy(to + i * nbytes + k * value, data + k * stride + from[i] * value, value);
  }
}

void StoredRows::decode(int64_t first, int64_t n, int64_t cols, float* to) const {
  const auto block = static_cast<size_t>(info(record.dtype).block);
  const size_t nbytes = record.block_bytes(), n_blocks = static_cast<size_t>(record.cols()) / block;
  std::vector<float> values(block);
  std::vector<uint8_t> made(record.made ? n_blocks * nbytes : 0);
  for (int64_t k = 0; k < cols; ++k) {
    const uint8_t* row = made.data();
    if (record.made)
      record.made->read(first_input + k, 1, made.data());
    else
      row = record.data + static_cast<size_t>(first_input + k) * n_blocks * nbytes;
    size_t decoded = kNone;  // columns side by side mostly lie in one block
    for (int64_t i = 0; i < n; ++i) {
      const size_t column = static_cast<size_t>(file_row(first + i));
      if (column != kNone && column / block != decoded) {
        decoded = column / block;
        dequantize(record.dtype, row + decoded * nbytes, static_cast<int64_t>(block),
                   values.data());
      }
      to[i * cols + k] = column == kNone ? 0.0f : values[column % block];
    }
  }
}

void StoredRows::to_blocks(const uint8_t* codes, int64_t first, int64_t n, uint8_t* blocks) const {
  const size_t n_codes = static_cast<size_t>(info(record.dtype).block);
  const size_t nbytes = info(record.dtype).block_bytes;
  for (int64_t i = 0; i < n; ++i) {
    const size_t row = static_cast<size_t>(file_row(first + i));
    for (int64_t b = 0; b < record.cols() / info(record.dtype).block; ++b) {
      put_scale(record, row == kNone ? 0 : row, blocks);
      std::memcpy(blocks + nbytes - n_codes, codes, n_codes);
      codes += n_codes;
      blocks += nbytes;
    }
  }
}

}  // namespace pyflow
