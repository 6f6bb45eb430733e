#include "quant/foreign/codes.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/errors.h"
#include "quant/formats/scaled/e4m3.h"
#include "quant/formats/scaled/fp4.h"
#include "quant/formats/scaled/nf4.h"

namespace pyflow::quant {

namespace {

// A group of columns; code(i) is that of weight i of the matrix. False: one is a NaN.
template <class Code>
bool put_group(const CodeRows::Matrix& m, float scale, int64_t begin, int64_t n, Code code,
               uint8_t* out) {
  bool is_number = true;
  const bool half = m.dtype == DType::BF16;
  for (int64_t i = begin; i < begin + n; ++i) {
    const float value = m.table[code(i)] * scale * m.factor;
    is_number &= value == value;
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (half) {
      const auto upper = static_cast<uint16_t>(bits >> 16);
      std::memcpy(out, &upper, sizeof upper);
    } else {
      std::memcpy(out, &bits, sizeof bits);
    }
    out += half ? sizeof(uint16_t) : sizeof bits;
  }
  return is_number;
}

bool put_group(const CodeRows::Matrix& m, float scale, int64_t begin, int64_t n, uint8_t* out) {
  const uint8_t* codes = m.codes.data();
  if (m.form == CodeRows::Matrix::Form::Bytes)
    return put_group(
        m, scale, begin, n, [codes](int64_t i) { return codes[i]; }, out);
  const int odd = m.form == CodeRows::Matrix::Form::HighFirst ? 1 : 0;
  const auto nibble = [codes, odd](int64_t i) {
    return static_cast<uint8_t>(codes[i / 2] >> ((i ^ odd) & 1) * 4 & 15);
  };
  return put_group(m, scale, begin, n, nibble, out);
}

// Blocks of codes that begin at weight `begin` of the matrix.
template <class Format>
bool put_blocks(const CodeRows::Matrix& m, float scale, int64_t begin, int64_t n, uint8_t* out) {
  bool is_number = true;
  for (int64_t i = begin; i < begin + n;
       i += Format::kBlock, out += sizeof(typename Format::Block)) {
    const auto block = Format::of_codes(scale, m.codes.data(), i);
    for (int64_t k = i; k < i + Format::kBlock; ++k) {
      const float value = m.table[Format::code(block, static_cast<int>(k - i))];
      is_number &= value == value;
    }
    std::memcpy(out, &block, sizeof block);
  }
  return is_number;
}

bool put(const CodeRows::Matrix& m, float scale, int64_t begin, int64_t n, uint8_t* out) {
  switch (m.dtype) {
    case DType::E4M3:
      return put_blocks<E4M3>(m, scale, begin, n, out);
    case DType::NF4:
      return put_blocks<NF4>(m, scale, begin, n, out);
    case DType::FP4:
      return put_blocks<FP4>(m, scale, begin, n, out);
    default:
      return put_group(m, scale, begin, n, out);
  }
}

template <class Format>
bool has_codes(const CodeRows::Matrix& m) {
  typename Format::Block block = {};
  block.d = 1;
  float value[Format::kBlock];
  for (int code = 0; code < Format::kCodes; ++code) {
    Format::set_code(block, 0, static_cast<uint8_t>(code));
    Format::dequantize(block, value);
    const float wanted = m.table[static_cast<size_t>(code)];
    if (wanted == wanted && std::memcmp(&wanted, value, sizeof wanted) != 0) return false;
  }
  return true;
}

}  // namespace

bool CodeRows::can_be(const Matrix& m) {
  const int64_t block = info(m.dtype).block;
  if (m.factor != 1 || m.cols % block || (m.group_size % block && m.group_size < m.cols))
    return false;
  switch (m.dtype) {
    case DType::E4M3:
      return m.form == Matrix::Form::Bytes && has_codes<E4M3>(m);
    case DType::NF4:
      return m.form == Matrix::Form::HighFirst && has_codes<NF4>(m);
    case DType::FP4:
      return m.form == Matrix::Form::HighFirst && has_codes<FP4>(m);
    default:
      return false;
  }
}

void CodeRows::read(int64_t first, int64_t n, uint8_t* out) const {
  const DTypeInfo& type = info(m_.dtype);
  for (int64_t row = first; row < first + n; ++row) {
    for (int64_t k = 0; k < m_.cols; k += m_.group_size) {
      const float scale = m_.scales.at(row / m_.row_block, k / m_.group_size);
      const int64_t count = std::min(m_.cols - k, m_.group_size);
      if (!put(m_, scale, row * m_.cols + k, count, out))
        throw UnsupportedError("expected weights that are numbers, found a NaN in row " +
                               std::to_string(row) + "; the file is damaged");
      out += static_cast<size_t>(count) / type.block * type.block_bytes;
    }
  }
}

std::vector<std::span<const uint8_t>> CodeRows::parts() const {
  std::vector<std::span<const uint8_t>> all = {m_.codes, m_.scales.data};
  if (!m_.scales.outer.empty()) all.push_back(m_.scales.outer);
  return all;
}

}  // namespace pyflow::quant
