#include "quant/foreign/compact.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <string>

#include "core/errors.h"
#include "quant/formats/block/nvfp4.h"
#include "quant/packed_tensor.h"

namespace pyflow::quant {
namespace {

[[noreturn]] void refuse(DType dtype) {
  throw ShapeError("expected weights that " + std::string(info(dtype).name) + " holds");
}

class CompactCodes : public CompactRows {
 public:
  CompactCodes(const CodeRows::Matrix& matrix, DType dtype) : m_(matrix), dtype_(dtype) {}

  DType dtype() const override { return dtype_; }
  bool has_factors() const override { return true; }
  float factor(int64_t row) const override {
    if (dtype_ == DType::NVFP4) return m_.scales.divides ? 1 / m_.scales.factor : m_.scales.factor;
    return m_.scales.at(row, 0) * m_.factor;
  }
  std::vector<std::span<const uint8_t>> parts() const override { return CodeRows(m_).parts(); }
  void read(int64_t first, int64_t n, uint8_t* out) const override {
    for (int64_t row = first; row < first + n; ++row)
      for (int64_t k = 0; k < m_.cols; k += info(dtype_).block, out += info(dtype_).block_bytes)
        dtype_ == DType::NVFP4 ? put_nvfp4(row, k, out) : put_bytes(row, k, out);
  }

 private:
  void put_nvfp4(int64_t row, int64_t k, uint8_t* out) const {
    NVFP4::Block b;
    const uint8_t* codes = m_.codes.data() + (row * m_.cols + k) / 2;
    for (int64_t i = 0; i < 4; ++i, codes += 8) {
      const int64_t at = row * m_.scales.per_row + (k / 16 + i) * m_.scales.per_group;
      b.scales[i] = m_.scales.data[static_cast<size_t>(at)];
      if (b.scales[i] >= 0x7f)
        throw UnsupportedError(
            "expected scales that are numbers from 0 to 448, found another in row " +
            std::to_string(row) + "; the file is damaged");
      for (int j = 0; j < 8; ++j) {
        const int low = codes[j / 2] >> j % 2 * 4 & 15, high = codes[4 + j / 2] >> j % 2 * 4 & 15;
        b.qs[8 * i + j] = static_cast<uint8_t>(low | high << 4);
      }
    }
    std::memcpy(out, &b, sizeof b);
  }
  void put_bytes(int64_t row, int64_t k, uint8_t* out) const {
    const uint16_t one = to_half(1.0f);
    std::memcpy(out, &one, sizeof one);
    std::memcpy(out + sizeof one, m_.codes.data() + row * m_.cols + k, 32);
  }

  CodeRows::Matrix m_;
  DType dtype_;
};

class CompactIntegers : public CompactRows {
 public:
  CompactIntegers(const IntegerRows::Matrix& matrix, bool by_rows)
      : rows_(matrix), by_rows_(by_rows) {}

  DType dtype() const override { return rows_.matrix().dtype; }
  bool has_factors() const override { return by_rows_; }
  float factor(int64_t row) const override {
    return by_rows_ ? rows_.matrix().scales.at(row, 0) : 1.0f;
  }
  std::span<const int32_t> order() const override { return rows_.matrix().order; }
  std::vector<std::span<const uint8_t>> parts() const override { return rows_.parts(); }
  void read(int64_t first, int64_t n, uint8_t* out) const override { rows_.read(first, n, out); }

 private:
  IntegerRows rows_;
  bool by_rows_;
};

class CompactBlocks : public CompactRows {
 public:
  explicit CompactBlocks(const ScaledBlocks& blocks)
      : b_(blocks), row_bytes_(row_bytes(blocks.dtype, blocks.cols)) {}

  DType dtype() const override { return b_.dtype; }
  bool has_factors() const override { return true; }
  float factor(int64_t row) const override {
    const auto n = static_cast<int64_t>(b_.scales.size() / sizeof(float));
    const auto found = load<float>(b_.scales.data() + row / (b_.rows / n) * 4);
    if (!std::isfinite(found))
      throw UnsupportedError(
          "expected a scale that is a finite number, found another; the file is "
          "damaged");
    return found;
  }
  std::vector<std::span<const uint8_t>> parts() const override { return {b_.blocks, b_.scales}; }
  void read(int64_t first, int64_t n, uint8_t* out) const override {
    std::memcpy(out, b_.blocks.data() + static_cast<size_t>(first) * row_bytes_,
                static_cast<size_t>(n) * row_bytes_);
  }

  // Values of F32.
  void values(int64_t first, int64_t n, uint8_t* out) const {
    std::vector<float> row(static_cast<size_t>(b_.cols));
    for (int64_t r = first; r < first + n; ++r, out += row.size() * sizeof(float)) {
      const float scale = factor(r);
      dequantize(b_.dtype, b_.blocks.data() + static_cast<size_t>(r) * row_bytes_, b_.cols,
                 row.data());
      for (float& x : row) x *= scale;
      std::memcpy(out, row.data(), row.size() * sizeof(float));
    }
  }

 private:
  ScaledBlocks b_;
  size_t row_bytes_;
};

class ScaledRows : public MadeRows {
 public:
  explicit ScaledRows(std::shared_ptr<const CompactBlocks> blocks) : blocks_(blocks) {
    set_compact(std::move(blocks));
  }
  void read(int64_t first, int64_t n, uint8_t* out) const override {
    blocks_->values(first, n, out);
  }
  std::vector<std::span<const uint8_t>> parts() const override { return blocks_->parts(); }

 private:
  std::shared_ptr<const CompactBlocks> blocks_;
};

// Columns by group, those of a group in their own order.
std::vector<int32_t> sorted_columns(const IntegerRows::Matrix& m) {
  std::vector<int32_t> order(static_cast<size_t>(m.cols));
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](int32_t k) { return m.groups.at(k); });
  return order;
}

bool is_signed_bytes(const CodeTable& table) {
  for (size_t i = 0; i < table.size(); ++i)
    if (table[i] != static_cast<float>(static_cast<int8_t>(i))) return false;
  return true;
}

bool is_nvfp4(const CodeRows::Matrix& m) {
  using Kind = Scales::Kind;
  const Scales& s = m.scales;
  if (m.form != CodeRows::Matrix::Form::LowFirst || m.group_size != 16 || m.cols % 64 ||
      m.factor != 1 || s.kind != Kind::Code || !s.outer.empty())
    return false;
  for (int i = 0; i < 0x7f; ++i)
    if ((*s.table)[static_cast<size_t>(i)] != 2 * NVFP4::scale(static_cast<uint8_t>(i)))
      return false;
  for (int i = 0; i < 16; ++i)
    if (2 * m.table[static_cast<size_t>(i)] != static_cast<float>(kFp4Points[i] - NVFP4::kOffset))
      return false;
  return true;
}

}  // namespace

std::shared_ptr<const CompactRows> compact_codes(const CodeRows::Matrix& m, DType dtype) {
  using Form = CodeRows::Matrix::Form;
  const bool fits = dtype == DType::NVFP4 ? m.row_block == 1 && is_nvfp4(m)
                                          : dtype == DType::Q8_0 && m.form == Form::Bytes &&
                                                m.row_block == 1 && m.group_size >= m.cols &&
                                                m.cols % 32 == 0 && is_signed_bytes(m.table);
  if (!fits) refuse(dtype);
  return std::make_shared<CompactCodes>(m, dtype);
}

std::shared_ptr<const MadeRows> scaled_rows(const ScaledBlocks& b) {
  const auto n = static_cast<int64_t>(b.scales.size() / sizeof(float));
  if (n < 1 || b.rows % n) throw ShapeError("expected one scale, or one for each of equal parts");
  return std::make_shared<ScaledRows>(std::make_shared<const CompactBlocks>(b));
}

std::shared_ptr<const CompactRows> compact_integers(const IntegerRows::Matrix& matrix, DType dtype,
                                                    bool by_rows) {
  IntegerRows::Matrix m = matrix;
  m.dtype = dtype;
  m.has_factors = by_rows;
  const int64_t block = info(dtype).block;
  if (block != 32 || m.cols % block || (by_rows && m.groups.count != 1) ||
      !IntegerRows::holds(dtype) || (dtype == DType::Q8_B32 && (!by_rows || m.codes.bits != 8)))
    refuse(dtype);
  if (!m.groups.of.empty()) m.order = sorted_columns(m);
  for (int64_t k = 0; k < m.cols; ++k)
    if (m.group_of(k) != m.group_of(k / block * block)) refuse(dtype);
  return std::make_shared<CompactIntegers>(m, by_rows);
}

}  // namespace pyflow::quant
