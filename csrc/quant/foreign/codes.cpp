#include "quant/foreign/codes.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/errors.h"

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

}  // namespace

void CodeRows::read(int64_t first, int64_t n, uint8_t* out) const {
  const size_t value_bytes = info(m_.dtype).block_bytes;
  for (int64_t row = first; row < first + n; ++row) {
    for (int64_t k = 0; k < m_.cols; k += m_.group_size) {
      const float scale = m_.scales.at(row / m_.row_block, k / m_.group_size);
      const int64_t count = std::min(m_.cols - k, m_.group_size);
      if (!put_group(m_, scale, row * m_.cols + k, count, out))
        throw UnsupportedError("expected weights that are numbers, found a NaN in row " +
                               std::to_string(row) + "; the file is damaged");
      out += static_cast<size_t>(count) * value_bytes;
    }
  }
}

std::vector<std::span<const uint8_t>> CodeRows::parts() const {
  std::vector<std::span<const uint8_t>> all = {m_.codes, m_.scales.data};
  if (!m_.scales.outer.empty()) all.push_back(m_.scales.outer);
  return all;
}

}  // namespace pyflow::quant
