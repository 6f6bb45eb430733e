#include "quant/foreign/integers.h"

#include <algorithm>
#include <cstring>

#include "quant/formats/block/q4_0.h"
#include "quant/formats/block/q5_0.h"
#include "quant/formats/block/q8_0.h"
#include "quant/formats/own/q2_b32.h"
#include "quant/formats/own/q3_b32.h"

namespace pyflow::quant {
namespace {

constexpr int64_t kMost = int64_t{1} << 40;

// A block of 32 integers from Low on. Levels are those of the format's encoder.
template <class Format, int Low>
void put_block(const int16_t* values, uint16_t d, uint8_t* out) {
  Fields f;
  f.d = d;
  if constexpr (Format::kMinimum) f.m = to_half(from_half(d) * Low);
  // Q8_0's encoder has no -128: its levels begin at -127.
  constexpr int kFrom = Low == -128 ? -127 : Low;
  for (int j = 0; j < 32; ++j) f.q[j] = static_cast<uint8_t>(values[j] - kFrom);
  const auto block = Format::assemble(f);
  std::memcpy(out, &block, sizeof block);
}

void put_block(DType dtype, const int16_t* values, uint16_t d, uint8_t* out) {
  switch (dtype) {
    case DType::Q2_B32:
      return put_block<Q2_B32, -2>(values, d, out);
    case DType::Q3_B32:
      return put_block<Q3_B32, -4>(values, d, out);
    case DType::Q4_0:
      return put_block<Q4_0, -8>(values, d, out);
    case DType::Q5_0:
      return put_block<Q5_0, -16>(values, d, out);
    default:
      return put_block<Q8_0, -128>(values, d, out);
  }
}

}  // namespace

inline int PackedIntegers::code(int64_t line, int64_t i) const {
  if (order == Order::Bytes) return data[line * per_line + i * per_word] ^ 0x80;
  constexpr uint8_t kAwq[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // the place of a column
  if (order == Order::Awq) i = (i & ~int64_t{7}) | kAwq[i & 7];
  const int each = 32 / bits;
  const int64_t w = order == Order::Words ? i / each : i * bits / 32;
  const auto shift = static_cast<int>(order == Order::Words ? i % each * bits : i * bits % 32);
  const int64_t at = line * per_line + w * per_word;
  uint64_t found = load<uint32_t>(data.data() + at * 4);
  if (shift + bits > 32) {
    const auto next = load<uint32_t>(data.data() + (at + per_word) * 4);
    found |= static_cast<uint64_t>(next) << 32;
  }
  return static_cast<int>(found >> shift & ((1u << bits) - 1));
}

uint64_t PackedIntegers::needs(int64_t lines, int64_t n) const {
  if (lines < 1 || n < 1 || lines > kMost || n > kMost || bits < 2 || bits > 8 || per_line < 0 ||
      per_word < 0 || per_line > kMost || per_word > kMost)
    return 0;
  const int each = order == Order::Words ? 32 / bits : 0;
  if (order == Order::Awq) n = (n + 7) / 8 * 8;
  const int64_t words = order == Order::Bytes ? n
                        : each                ? (n + each - 1) / each
                                              : (n * bits + 31) / 32;
  int64_t last = 0, along = 0;
  if (__builtin_mul_overflow(lines - 1, per_line, &last) ||
      __builtin_mul_overflow(words - 1, per_word, &along) ||
      __builtin_add_overflow(last, along, &last) || last >= int64_t{1} << 60)
    return 0;
  return static_cast<uint64_t>(last + 1) * (order == Order::Bytes ? 1 : 4);
}

void IntegerRows::read(int64_t first, int64_t n, uint8_t* out) const {
  constexpr int64_t kRows = 16;
  const int64_t cols = m_.cols, block = info(m_.dtype).block, n_groups = m_.groups.count;
  const size_t block_bytes = info(m_.dtype).block_bytes;
  std::vector<int16_t> values(static_cast<size_t>(std::min(n, kRows) * cols));
  std::vector<int16_t> zeros(static_cast<size_t>(n_groups));
  for (const int64_t end = first + n; first < end;) {
    const int64_t count = std::min(kRows, end - first);
    // Words that several rows share, or that lie side by side, are read one after the other.
    const auto put = [&](int64_t r, int64_t k) {
      const int64_t row = first + r;
      values[r * cols + k] =
          static_cast<int16_t>(m_.by_column ? m_.codes.code(k, row) : m_.codes.code(row, k));
    };
    if (m_.by_column || m_.codes.per_line == 1) {
      for (int64_t k = 0; k < cols; ++k)
        for (int64_t r = 0; r < count; ++r) put(r, k);
    } else {
      for (int64_t r = 0; r < count; ++r)
        for (int64_t k = 0; k < cols; ++k) put(r, k);
    }
    for (int64_t r = 0; r < count; ++r, ++first) {
      int16_t* row = values.data() + r * cols;
      for (int64_t g = 0; g < n_groups; ++g)
        zeros[g] =
            static_cast<int16_t>(m_.zero + (m_.zeros.data.empty() ? 0 : m_.zeros.code(g, first)));
      if (block == 1) {
        for (int64_t k = 0; k < cols; ++k, out += sizeof(float)) {
          const int64_t g = m_.groups.at(k);
          const float value = m_.scales.at(first, g) * static_cast<float>(row[k] - zeros[g]);
          std::memcpy(out, &value, sizeof value);
        }
        continue;
      }
      for (int64_t k = 0; k < cols; k += block, out += block_bytes) {
        const int64_t g = m_.groups.at(k);
        for (int64_t j = k; j < k + block; ++j) row[j] = static_cast<int16_t>(row[j] - zeros[g]);
        put_block(m_.dtype, row + k, to_half(m_.scales.at(first, g)), out);
      }
    }
  }
}

std::vector<std::span<const uint8_t>> IntegerRows::parts() const {
  std::vector<std::span<const uint8_t>> all = {m_.codes.data, m_.scales.data};
  if (!m_.zeros.data.empty()) all.push_back(m_.zeros.data);
  if (!m_.groups.of.empty()) all.push_back(m_.groups.of);
  return all;
}

}  // namespace pyflow::quant
