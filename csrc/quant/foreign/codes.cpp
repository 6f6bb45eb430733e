#include "quant/foreign/codes.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>

#include "core/errors.h"

namespace pyflow::quant {

inline uint8_t CodeRows::code(int64_t i) const {
  if (m_.form == Matrix::Form::Bytes) return m_.codes[static_cast<size_t>(i)];
  const bool high = (i % 2 == 0) == (m_.form == Matrix::Form::HighFirst);
  return m_.codes[static_cast<size_t>(i / 2)] >> (high ? 4 : 0) & 15;
}

void CodeRows::read(int64_t first, int64_t n, uint8_t* out) const {
  const size_t value_bytes = info(m_.dtype).block_bytes;
  for (int64_t row = first; row < first + n; ++row) {
    for (int64_t begin = 0; begin < m_.cols; begin += m_.group_size) {
      const float scale = m_.scales.at(row / m_.row_block, begin / m_.group_size);
      const int64_t end = std::min(m_.cols, begin + m_.group_size);
      for (int64_t k = begin; k < end; ++k, out += value_bytes) {
        const float value = m_.table[code(row * m_.cols + k)] * scale * m_.factor;
        uint32_t bits;
        std::memcpy(&bits, &value, sizeof bits);
        if (m_.dtype == DType::BF16) bits >>= 16;
        std::memcpy(out, &bits, value_bytes);
        if (std::isnan(value))
          throw UnsupportedError("expected weights that are numbers, found a NaN in row " +
                                 std::to_string(row) + "; the file is damaged");
      }
    }
  }
}

std::vector<std::span<const uint8_t>> CodeRows::parts() const {
  std::vector<std::span<const uint8_t>> all = {m_.codes, m_.scales.data};
  if (!m_.scales.outer.empty()) all.push_back(m_.scales.outer);
  return all;
}

}  // namespace pyflow::quant
