#include "quant/foreign/integers.h"

#include <algorithm>
#include <cstring>

#include "quant/formats/block/q4_0.h"
#include "quant/formats/block/q5_0.h"
#include "quant/formats/block/q8_0.h"
#include "quant/formats/own/q2_b32.h"
#include "quant/formats/own/q3_b32.h"
#include "quant/formats/own/q8_b32.h"

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

// Codes as they are, with a base: -zero, which F16 holds.
void put_line(const int16_t* codes, int zero, uint8_t* out) {
  Fields f;
  f.d = to_half(1.0f);
  f.m = to_half(static_cast<float>(-zero));
  for (int j = 0; j < 32; ++j) f.q[j] = static_cast<uint8_t>(codes[j]);
  const auto block = Q8_B32::assemble(f);
  std::memcpy(out, &block, sizeof block);
}

// A row in another order of its columns.
void reorder(const std::vector<int32_t>& order, int16_t* row, std::vector<int16_t>& sorted) {
  sorted.resize(order.size());
  for (size_t i = 0; i < order.size(); ++i) sorted[i] = row[order[i]];
  std::copy(sorted.begin(), sorted.end(), row);
}

}  // namespace

bool IntegerRows::holds(DType dtype) {
  return dtype == DType::Q2_B32 || dtype == DType::Q3_B32 || dtype == DType::Q4_0 ||
         dtype == DType::Q5_0 || dtype == DType::Q8_0 || dtype == DType::Q8_B32;
}

int PackedIntegers::code(int64_t line, int64_t i) const {
  switch (order) {
    case Order::Stream:
      return code<Order::Stream>(line, i);
    case Order::Words:
      return code<Order::Words>(line, i);
    case Order::Awq:
      return code<Order::Awq>(line, i);
    case Order::Bytes:
      return code<Order::Bytes>(line, i);
  }
  __builtin_unreachable();
}

template <PackedIntegers::Order kOrder>
inline int PackedIntegers::code(int64_t line, int64_t i) const {
  if constexpr (kOrder == Order::Bytes) {
    return data[static_cast<size_t>(line * per_line + i * per_word)] ^ 0x80;
  } else {
    constexpr uint8_t kAwq[8] = {0, 4, 1, 5, 2, 6, 3, 7};  // the place of a column
    if constexpr (kOrder == Order::Awq) i = (i & ~int64_t{7}) | kAwq[i & 7];
    const int each = 32 / bits;
    const int64_t w = kOrder == Order::Words ? i / each : i * bits / 32;
    const auto shift = static_cast<int>(kOrder == Order::Words ? i % each * bits : i * bits % 32);
    const int64_t at = line * per_line + w * per_word;
    uint64_t found = load<uint32_t>(data.data() + at * 4);
    if (shift + bits > 32) {
      const auto next = load<uint32_t>(data.data() + (at + per_word) * 4);
      found |= static_cast<uint64_t>(next) << 32;
    }
    return static_cast<int>(found >> shift & ((1u << bits) - 1));
  }
}

// Integers that share a word are taken out of it together.
void PackedIntegers::whole_words(int64_t line, int64_t n_lines, int64_t n, int64_t stride,
                                 int16_t* out) const {
  const int each = 32 / bits;
  const uint32_t mask = (1u << bits) - 1;
  const auto take = [&](int64_t l, int64_t first) {
    auto w = load<uint32_t>(data.data() + ((line + l) * per_line + first / each * per_word) * 4);
    int16_t* to = out + l * stride + first;
    for (int64_t j = 0; j < std::min<int64_t>(each, n - first); ++j, w >>= bits)
      to[j] = static_cast<int16_t>(w & mask);
  };
  if (per_line == 1) {  // words of lines lie side by side
    for (int64_t first = 0; first < n; first += each)
      for (int64_t l = 0; l < n_lines; ++l) take(l, first);
  } else {
    for (int64_t l = 0; l < n_lines; ++l)
      for (int64_t first = 0; first < n; first += each) take(l, first);
  }
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

void IntegerRows::unpack(int64_t first, int64_t n, int64_t stride, int16_t* out) const {
  using Order = PackedIntegers::Order;
  const PackedIntegers& codes = m_.codes;
  const bool is_whole =
      codes.order == Order::Words || (codes.order == Order::Stream && 32 % codes.bits == 0);
  if (is_whole && !m_.by_column) return codes.whole_words(first, n, m_.cols, stride, out);
  const auto each = [&](auto code) {
    for (int64_t k = 0; k < m_.cols; ++k)
      for (int64_t r = 0; r < n; ++r)
        out[r * stride + k] = static_cast<int16_t>(code(first + r, k));
  };
  if (codes.order == Order::Awq && m_.by_column)
    each([&](int64_t row, int64_t k) { return codes.code<Order::Awq>(k, row); });
  else if (m_.by_column)
    each([&](int64_t row, int64_t k) { return codes.code(k, row); });
  else if (codes.order == Order::Bytes)
    each([&](int64_t row, int64_t k) { return codes.code<Order::Bytes>(row, k); });
  else
    each([&](int64_t row, int64_t k) { return codes.code(row, k); });
}

void IntegerRows::read(int64_t first, int64_t n, uint8_t* out) const {
  constexpr int64_t kRows = 16;
  const int64_t cols = m_.cols, block = info(m_.dtype).block;
  const size_t block_bytes = info(m_.dtype).block_bytes;
  // A line of the cache more than rows need, or those of 4,096 columns would all lie in one set.
  const int64_t stride = cols + 32;
  std::vector<int16_t> values(static_cast<size_t>(std::min(n, kRows) * stride));
  struct Group {
    int zero;
    float scale;
  };
  std::vector<int16_t> sorted;
  std::vector<Group> groups(static_cast<size_t>(m_.groups.count));
  for (const int64_t end = first + n; first < end;) {
    const int64_t count = std::min(kRows, end - first);
    unpack(first, count, stride, values.data());
    for (int64_t r = 0; r < count; ++r, ++first) {
      for (int64_t g = 0; g < m_.groups.count; ++g)
        groups[static_cast<size_t>(g)] = {m_.zero_at(first, g), m_.scales.at(first, g)};
      const auto group = [&](int64_t k) { return groups[static_cast<size_t>(m_.group_of(k))]; };
      int16_t* row = values.data() + r * stride;
      if (!m_.order.empty()) reorder(m_.order, row, sorted);
      if (block == 1) {
        for (int64_t k = 0; k < cols; ++k, out += sizeof(float)) {
          const auto [zero, scale] = group(k);
          const float value = scale * static_cast<float>(row[k] - zero);
          std::memcpy(out, &value, sizeof value);
        }
        continue;
      }
      for (int64_t k = 0; k < cols; k += block, out += block_bytes) {
        const auto [zero, scale] = group(k);
        if (m_.dtype == DType::Q8_B32) {
          put_line(row + k, zero, out);
          continue;
        }
        for (int64_t j = k; j < k + block; ++j) row[j] = static_cast<int16_t>(row[j] - zero);
        put_block(m_.dtype, row + k, to_half(m_.has_factors ? 1.0f : scale), out);
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
