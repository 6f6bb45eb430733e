// Scales beside weights that other programs have quantized, as they lie in a file.
#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "core/errors.h"
#include "quant/half.h"

namespace pyflow::quant {

// A little-endian word of a file.
template <class T>
inline T load(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// What 256 codes stand for; a NaN is no value.
using CodeTable = std::array<float, 256>;

// A number for each group of each row.
struct Scales {
  enum class Kind : uint8_t { F32, F16, BF16, Code };
  std::span<const uint8_t> data;
  Kind kind = Kind::F16;
  int64_t per_row = 1, per_group = 0;  // from the number of one row or group to that of the next
  // Codes: what they stand for. With `outer`, F32, as of bitsandbytes: number i is
  // table[code] * outer[i / outer_size] + offset, each operation rounded.
  std::shared_ptr<const CodeTable> table;
  std::span<const uint8_t> outer;
  int64_t outer_size = 1;
  float offset = 0;
  // What each is multiplied with, or divided by.
  float factor = 1;
  bool divides = false;

  size_t bytes_each() const { return kind == Kind::F32 ? 4 : kind == Kind::Code ? 1 : 2; }

  // UnsupportedError: it is no finite number.
  float at(int64_t row, int64_t group) const {
    const float value = number(row * per_row + group * per_group);
    const float scale = factor == 1 ? value : divides ? value / factor : value * factor;
    if (!std::isfinite(scale))
      throw UnsupportedError("expected scales that are finite numbers, found another in row " +
                             std::to_string(row) + "; the file is damaged");
    return scale;
  }

 private:
  float number(int64_t i) const {
    const uint8_t* p = data.data() + static_cast<size_t>(i) * bytes_each();
    switch (kind) {
      case Kind::F32:
        return load<float>(p);
      case Kind::F16:
        return from_half(load<uint16_t>(p));
      case Kind::BF16: {
        const uint32_t bits = static_cast<uint32_t>(load<uint16_t>(p)) << 16;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
      }
      case Kind::Code:
        if (outer.empty()) return (*table)[*p];
        return (*table)[*p] * load<float>(outer.data() + i / outer_size * 4) + offset;
    }
    __builtin_unreachable();
  }
};

}  // namespace pyflow::quant
