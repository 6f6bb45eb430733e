// Numbers that a self-test begins with, and how it compares what comes of them.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "quant/packed_tensor.h"

namespace pyflow::device {

using Floats = std::vector<float>;
using Bytes = std::vector<uint8_t>;

// The same numbers on every machine.
class Random {
 public:
  uint32_t next() {
    state_ ^= state_ << 13, state_ ^= state_ >> 7, state_ ^= state_ << 17;
    return static_cast<uint32_t>(state_ >> 16);
  }
  // Evenly in [-1, 1).
  float number() { return static_cast<float>(static_cast<int32_t>(next())) * 0x1p-31f; }
  Floats numbers(int64_t n, float size) {
    Floats x(static_cast<size_t>(n));
    for (float& v : x) v = size * number();
    return x;
  }
  // Bit patterns of floats of all sizes, subnormals among them, and the ends of ranges.
  Floats patterns(int64_t n) {
    constexpr float kInf = std::numeric_limits<float>::infinity();
    Floats x = {0.0f,          -0.0f,          kInf,      -kInf,     NAN,       1e-45f,
                -1e-45f,       1e-40f,         -1.1e-38f, 88.72284f, -87.3366f, 9.02f,
                3.4028235e38f, -3.4028235e38f, 1.0f,      -1.0f};
    while (static_cast<int64_t>(x.size()) < n) {
      const uint32_t bits = next();
      float v;
      std::memcpy(&v, &bits, 4);
      x.push_back(x.size() % 2 ? v : 12.0f * number());
    }
    return x;
  }

 private:
  uint64_t state_ = 0x9e3779b97f4a7c15;
};

// Random blocks of a format whose values are finite and of moderate size.
inline Bytes blocks_of(Random& random, DType dtype, int64_t rows, int64_t cols) {
  const auto block_bytes = size_t{info(dtype).block_bytes};
  Bytes bytes(static_cast<size_t>(rows) * row_bytes(dtype, cols));
  Floats values(info(dtype).block);
  const auto moderate = [](float v) { return std::fabs(v) < 1e6f; };
  for (size_t at = 0; at < bytes.size(); at += block_bytes) {
    do {
      for (size_t i = 0; i < block_bytes; ++i) bytes[at + i] = static_cast<uint8_t>(random.next());
      dequantize(dtype, bytes.data() + at, static_cast<int64_t>(values.size()), values.data());
    } while (!std::all_of(values.begin(), values.end(), moderate));
  }
  return bytes;
}

inline uint32_t bits_of(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, 4);
  return bits;
}
inline bool same(float expected, float found) {
  return bits_of(expected) == bits_of(found) || (std::isnan(expected) && std::isnan(found));
}
inline std::string shown(float x) {
  char text[64];
  std::snprintf(text, sizeof text, "%.9g (0x%08x)", static_cast<double>(x), bits_of(x));
  return text;
}

// The first number that differs, with the input at its place; NaNs are all the same.
inline std::string differing(const std::string& op, const Floats& input, const Floats& expected,
                             const Floats& found) {
  for (size_t i = 0; i < expected.size(); ++i) {
    if (same(expected[i], found[i])) continue;
    const std::string of = i < input.size() ? " of " + shown(input[i]) : "";
    return op + of + ", number " + std::to_string(i) + ": expected " + shown(expected[i]) +
           ", found " + shown(found[i]);
  }
  return "";
}
inline std::string differing(const std::string& op, const Bytes& expected, const Bytes& found) {
  for (size_t i = 0; i < expected.size(); ++i)
    if (expected[i] != found[i])
      return op + ", byte " + std::to_string(i) + ": expected " + std::to_string(expected[i]) +
             ", found " + std::to_string(found[i]);
  return "";
}

}  // namespace pyflow::device
