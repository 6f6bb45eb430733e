#include "encode/encoder.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "core/errors.h"
#include "quant/formats.def"
#include "quant/packed_tensor.h"

namespace pyflow {
namespace {

constexpr float kLargestImportance = 1e30f;
template <class Format>
constexpr float largest() {
  if constexpr (Format::kBlock == 1) {
    return Format::kLargest;
  } else {
    return kLargestHalf;
  }
}

template <class Format>
void encode_blocks(const EncodeTable& table, DType dtype, const SearchArgs& args, int64_t n_blocks,
                   uint8_t* out) {
  using Block = typename Format::Block;
  const auto put = [out](int64_t i, const Block& block) {
    std::memcpy(out + static_cast<size_t>(i) * sizeof(Block), &block, sizeof(Block));
  };
  if constexpr (Format::kBlock == 1) {
    for (int64_t i = 0; i < n_blocks; ++i) put(i, Format::encode(args.x[i]));
  } else if constexpr (quant::Encodable<Format>) {
    constexpr int64_t kAtOnce = 16;
    quant::Fields fields[kAtOnce];
    for (int64_t b = 0; b < n_blocks; b += kAtOnce) {
      const int64_t end = std::min(b + kAtOnce, n_blocks);
      table.search[static_cast<size_t>(dtype)](args, b, end, fields);
      for (int64_t i = b; i < end; ++i) put(i, Format::assemble(fields[i - b]));
    }
  }
}

struct Entry {
  decltype(&encode_blocks<quant::F32>) encode;
  float largest;
  bool encodable;
};
constexpr Entry kEntries[] = {
#define PYFLOW_FORMAT(name, id, block, bytes) \
  {encode_blocks<quant::name>, largest<quant::name>(), quant::Encodable<quant::name>},
#include "quant/formats.def"
#undef PYFLOW_FORMAT
};

// The shortest text that parses as x, so that a limit and the next float beyond it look different.
std::string number(float x) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, x).ptr};
}

std::string encodable_names() {
  std::string names;
  for (const DTypeInfo& d : kDTypes)
    if (can_encode(d.dtype)) names += (names.empty() ? "" : ", ") + std::string(d.name);
  return names;
}

}  // namespace

bool can_encode(DType dtype) { return kEntries[static_cast<size_t>(dtype)].encodable; }

Encoder::Encoder(DType dtype, int64_t n_cols, const float* importance, const EncodeTable& table)
    : dtype_(dtype),
      n_cols_(n_cols),
      importance_(importance),
      table_(table),
      row_bytes_(pyflow::row_bytes(dtype, n_cols)) {
  if (!can_encode(dtype))
    throw UnsupportedError("weight format " + std::string(info(dtype).name) +
                           " is only read: expected one of " + encodable_names());
  for (int64_t i = 0; importance && i < n_cols; ++i)
    if (!(importance[i] >= 0.0f && importance[i] <= kLargestImportance))
      throw UnsupportedError("importance of column " + std::to_string(i) +
                             ": expected a number from 0 to 1e30, found " + number(importance[i]));
}

void Encoder::check(const float* x, int64_t n_rows, int64_t first_row) const {
  const float most = kEntries[static_cast<size_t>(dtype_)].largest;
  const int64_t n = n_rows * n_cols_;
  bool fit = true;
  for (int64_t i = 0; i < n; ++i) fit &= std::fabs(x[i]) <= most;  // false for a NaN
  if (fit) return;
  int64_t i = 0;
  while (std::fabs(x[i]) <= most) ++i;
  throw UnsupportedError("row " + std::to_string(first_row + i / n_cols_) + ", column " +
                         std::to_string(i % n_cols_) + ": expected weights that " +
                         std::string(info(dtype_).name) + " can hold, finite and up to " +
                         number(most) + ", found " + number(x[i]));
}

void Encoder::encode(const float* x, int64_t n_rows, int64_t first_row, uint8_t* out) const {
  check(x, n_rows, first_row);
  kEntries[static_cast<size_t>(dtype_)].encode(table_, dtype_, {x, importance_, n_cols_},
                                               n_rows * n_cols_ / info(dtype_).block, out);
}

void recode(const SourceRows& from, const Encoder& to, uint8_t* out, RowLoss* losses) {
  const int64_t n = to.n_cols();
  std::vector<float> x(static_cast<size_t>(n)), y(static_cast<size_t>(n));
  for (int64_t r = 0; r < from.n_rows; ++r, out += to.row_bytes()) {
    dequantize(from.dtype, from.row(r, n), n, x.data());
    to.encode(x.data(), 1, from.first_row + r, out);
    dequantize(to.dtype(), out, n, y.data());
    RowLoss loss;
    for (int64_t i = 0; i < n; ++i) {
      const auto at = static_cast<size_t>(i);
      const double d = static_cast<double>(x[at]) - static_cast<double>(y[at]);
      const double w = to.importance() ? static_cast<double>(to.importance()[i]) : 1.0;
      loss.squared += w * d * d;
      loss.power += w * static_cast<double>(x[at]) * static_cast<double>(x[at]);
      loss.absolute += std::fabs(d);
      loss.largest = std::max(loss.largest, std::fabs(d));
    }
    losses[r] = loss;
  }
}

}  // namespace pyflow
