#include "kernels/encode.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/errors.h"
#include "quant/formats.def"
#include "quant/packed_tensor.h"

namespace pyflow {
namespace {

constexpr float kLargestHalf = 65504.0f;
constexpr float kLargestImportance = 1e30f;
// Searches for the scales of a block under feedback. The second takes 1 to 8 % off the error, the
// third up to 2 % and the fourth up to 1 % more, most of it where blocks are of 256 weights.
constexpr int kTurns = 3;

template <class Format>
constexpr float largest() {
  if constexpr (Format::kBlock == 1) {
    return Format::kLargest;
  } else {
    return kLargestHalf;
  }
}

template <class Format>
void encode_blocks(const KernelTable& table, DType dtype, const SearchArgs& args, int64_t n_blocks,
                   uint8_t* out) {
  using Block = typename Format::Block;
  const auto put = [out](int64_t i, const Block& block) {
    std::memcpy(out + static_cast<size_t>(i) * sizeof(Block), &block, sizeof(Block));
  };
  if constexpr (Format::kBlock == 1) {
    for (int64_t i = 0; i < n_blocks; ++i) put(i, Format::encode(args.x[i]));
  } else {
    constexpr int64_t kAtOnce = 16;
    quant::Fields fields[kAtOnce];
    for (int64_t b = 0; b < n_blocks; b += kAtOnce) {
      const int64_t end = std::min(b + kAtOnce, n_blocks);
      table.search[static_cast<size_t>(dtype)](args, b, end, fields);
      for (int64_t i = b; i < end; ++i) put(i, Format::assemble(fields[i - b]));
    }
  }
}

// Blocks of several rows that lie in the same columns.
struct BlockColumn {
  int64_t n_rows;
  float* x;                 // rows of a block, to be encoded; overwritten
  const float* w;           // the weights themselves
  int64_t w_stride;         // floats between rows
  const float* importance;  // of the block's columns
  const float* factors;     // Feedback::row of its first column, from that column on
  int64_t factors_stride;
  uint8_t* out;
  size_t out_stride;
  float* values;  // rows of a block: what `out` says
  RowLoss* losses;
};

// The values that each weight of a block may take, whose scales are settled.
template <class Format, bool Even = Format::Search::kEven>
class Levels {
 public:
  explicit Levels(quant::Fields fields) {
    for (int q = 0; q < 2; ++q) {
      std::memset(fields.q, q, sizeof fields.q);
      Format::dequantize(Format::assemble(fields), values_[q]);
    }
    for (int k = 0; k < Format::kBlock; ++k) {
      values_[1][k] -= values_[0][k];
      inverse_[k] = values_[1][k] == 0.0f ? 0.0f : 1.0f / values_[1][k];
    }
  }
  // Which one weight k gets for x, and its value.
  int nearest(int k, float x) const {
    const float steps = (x - values_[0][k]) * inverse_[k];
    return static_cast<int>(
        std::lrintf(std::clamp(steps, 0.0f, static_cast<float>(Format::Search::kLevels - 1))));
  }
  float value(int k, int q) const { return values_[0][k] + static_cast<float>(q) * values_[1][k]; }

 private:
  float values_[2][Format::kBlock];  // the first one, and the step
  float inverse_[Format::kBlock];
};

// Uneven ones, which rise or fall.
template <class Format>
class Levels<Format, false> {
 public:
  explicit Levels(quant::Fields fields) {
    for (int q = 0; q < kLevels; ++q) {
      std::memset(fields.q, q, sizeof fields.q);
      Format::dequantize(Format::assemble(fields), values_[q]);
    }
    for (int k = 0; k < Format::kBlock; ++k) {
      sign_[k] = values_[kLevels - 1][k] < values_[0][k] ? -1.0f : 1.0f;
      for (int q = 0; q + 1 < kLevels; ++q)
        middles_[k][q] = sign_[k] * 0.5f * (values_[q][k] + values_[q + 1][k]);
    }
  }
  int nearest(int k, float x) const {
    const float y = sign_[k] * x;
    int q = 0;
    for (int i = 0; i + 1 < kLevels; ++i) q += y > middles_[k][i];
    return q;
  }
  float value(int k, int q) const { return values_[q][k]; }

 private:
  static constexpr int kLevels = Format::Search::kLevels;
  float values_[kLevels][Format::kBlock];
  float middles_[Format::kBlock][kLevels - 1];  // times sign
  float sign_[Format::kBlock];
};

// Encodes row r of a block, its scales being settled, from its last weight to the first, each error
// moving those before it: in x, to what they are to be when their turns come. Returns the squares
// of what rounding leaves of that, weighed.
template <class Format>
double round_row(const KernelTable& table, const BlockColumn& c, int64_t r, quant::Fields& f,
                 float* x, float* values) {
  const Levels<Format> levels(f);
  const float* w = c.w + r * c.w_stride;
  for (int k = Format::kBlock - 1; k >= 0; --k) {
    const int q = levels.nearest(k, x[k]);
    f.q[k] = static_cast<uint8_t>(q);
    table.add_scaled(x, c.factors + k * c.factors_stride, w[k] - levels.value(k, q), k);
  }
  Format::dequantize(Format::assemble(f), values);
  double sum = 0.0;
  for (int k = 0; k < Format::kBlock; ++k) {
    const double rounded = static_cast<double>(x[k]) - static_cast<double>(values[k]);
    sum += static_cast<double>(c.importance[k]) * rounded * rounded;
  }
  return sum;
}

// Scales are searched for what the weights are to be before any error of their block, and again for
// what they were to be when their turns came. Of each row the best block is taken.
template <class Format>
void encode_column(const KernelTable& table, DType dtype, const BlockColumn& c) {
  if constexpr (Format::kBlock > 1) {
    constexpr int kBlock = Format::kBlock;
    const auto n_rows = static_cast<size_t>(c.n_rows);
    const std::vector<float> begin(c.x, c.x + c.n_rows * kBlock);
    std::vector<quant::Fields> fields(n_rows);
    std::vector<double> least(n_rows);
    for (int turn = 0; turn < kTurns; ++turn) {
      table.search[static_cast<size_t>(dtype)]({c.x, c.importance, kBlock}, 0, c.n_rows,
                                               fields.data());
      for (int64_t r = 0; r < c.n_rows; ++r) {
        const auto row = static_cast<size_t>(r);
        float x[kBlock], values[kBlock];
        std::copy_n(begin.data() + r * kBlock, kBlock, x);
        const double squared = round_row<Format>(table, c, r, fields[row], x, values);
        for (int k = 0; k < kBlock; ++k)
          c.x[r * kBlock + k] = std::clamp(x[k], -largest<Format>(), largest<Format>());
        if (turn > 0 && !(squared < least[row])) continue;
        least[row] = squared;
        std::copy_n(values, kBlock, c.values + r * kBlock);
        const typename Format::Block block = Format::assemble(fields[row]);
        std::memcpy(c.out + row * c.out_stride, &block, sizeof block);
      }
    }
    for (int64_t r = 0; r < c.n_rows; ++r) {
      RowLoss& loss = c.losses[r];
      loss.squared += least[static_cast<size_t>(r)];
      for (int k = 0; k < kBlock; ++k) {
        const double d = static_cast<double>(c.w[r * c.w_stride + k]) -
                         static_cast<double>(c.values[r * kBlock + k]);
        loss.absolute += std::fabs(d);
        loss.largest = std::max(loss.largest, std::fabs(d));
      }
    }
  }
}

struct Entry {
  decltype(&encode_blocks<quant::F32>) encode;
  decltype(&encode_column<quant::F32>) encode_column;
  float largest;
};
constexpr Entry kEntries[] = {
#define PYFLOW_FORMAT(name, id, block, bytes) \
  {encode_blocks<quant::name>, encode_column<quant::name>, largest<quant::name>()},
#include "quant/formats.def"
#undef PYFLOW_FORMAT
};

std::string number(float x) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", static_cast<double>(x));
  return text;
}

}  // namespace

Encoder::Encoder(DType dtype, int64_t n_cols, const float* importance, const KernelTable& table)
    : dtype_(dtype),
      n_cols_(n_cols),
      importance_(importance),
      table_(table),
      row_bytes_(pyflow::row_bytes(dtype, n_cols)) {
  for (int64_t i = 0; importance && i < n_cols; ++i)
    if (!(importance[i] >= 0.0f && importance[i] <= kLargestImportance))
      throw UnsupportedError("importance of column " + std::to_string(i) +
                             ": expected a number from 0 to 1e30, found " + number(importance[i]));
}

void Encoder::check(const float* x, int64_t n_rows, int64_t first_row) const {
  const float most = kEntries[static_cast<size_t>(dtype_)].largest;
  const int64_t n = n_rows * n_cols_;
  bool fit = true;
  for (int64_t i = 0; i < n; ++i) fit &= std::fabs(x[i]) <= most;  // not so for a NaN
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

void recode(DType from, const uint8_t* rows, int64_t n_rows, int64_t first_row, const Encoder& to,
            uint8_t* out, RowLoss* losses) {
  const int64_t n = to.n_cols();
  const size_t from_bytes = row_bytes(from, n);
  std::vector<float> x(static_cast<size_t>(n)), y(static_cast<size_t>(n));
  for (int64_t r = 0; r < n_rows; ++r, rows += from_bytes, out += to.row_bytes()) {
    dequantize(from, rows, n, x.data());
    to.encode(x.data(), 1, first_row + r, out);
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

void recode(DType from, const uint8_t* rows, int64_t n_rows, int64_t first_row, const Encoder& to,
            const Feedback& feedback, uint8_t* out, RowLoss* losses) {
  constexpr int64_t kAtOnce = 32;  // rows for which the factors are read once
  const Entry& entry = kEntries[static_cast<size_t>(to.dtype())];
  const int64_t n = to.n_cols(), block = info(to.dtype()).block;
  const size_t from_bytes = row_bytes(from, n), block_bytes = row_bytes(to.dtype(), block);
  const auto size = [](int64_t a, int64_t b) { return static_cast<size_t>(a * b); };
  std::vector<float> weights(size(kAtOnce, n)), targets(weights.size());
  std::vector<float> x(size(kAtOnce, block)), values(x.size()), errors(x.size());
  for (int64_t first = 0; first < n_rows; first += kAtOnce) {
    const int64_t at_once = std::min(kAtOnce, n_rows - first);
    for (int64_t r = 0; r < at_once; ++r) {
      dequantize(from, rows + static_cast<size_t>(first + r) * from_bytes, n,
                 weights.data() + r * n);
      RowLoss& loss = losses[first + r] = {};
      for (int64_t i = 0; i < n; ++i) {
        const auto w = static_cast<double>(weights[static_cast<size_t>(r * n + i)]);
        loss.power += static_cast<double>(feedback.diagonal()[i]) * w * w;
      }
    }
    to.check(weights.data(), at_once, first_row + first);
    std::copy_n(weights.data(), at_once * n, targets.data());
    for (int64_t begin = n - block; begin >= 0; begin -= block) {
      const int64_t group = begin / Triangles::kWidth, own = begin % Triangles::kWidth;
      const float* factors = feedback.row(group, own);
      const int64_t stride = feedback.shape().width(group);
      for (int64_t r = 0; r < at_once; ++r)
        for (int64_t k = 0; k < block; ++k)
          x[size(r, block) + static_cast<size_t>(k)] = std::clamp(
              targets[static_cast<size_t>(r * n + begin + k)], -entry.largest, entry.largest);
      entry.encode_column(to.table_, to.dtype(),
                          {.n_rows = at_once,
                           .x = x.data(),
                           .w = weights.data() + begin,
                           .w_stride = n,
                           .importance = feedback.importance() + begin,
                           .factors = factors + own,
                           .factors_stride = stride,
                           .out = out + static_cast<size_t>(first) * to.row_bytes() +
                                  static_cast<size_t>(begin / block) * block_bytes,
                           .out_stride = to.row_bytes(),
                           .values = values.data(),
                           .losses = losses + first});
      if (own == 0) continue;
      for (int64_t k = 0; k < block; ++k)
        for (int64_t r = 0; r < at_once; ++r)
          errors[size(k, kAtOnce) + static_cast<size_t>(r)] =
              weights[static_cast<size_t>(r * n + begin + k)] -
              values[size(r, block) + static_cast<size_t>(k)];
      to.table_.add_outer({.a = errors.data(),
                           .a_stride = kAtOnce,
                           .b = factors,
                           .b_stride = stride,
                           .n = block,
                           .out = targets.data() + group * Triangles::kWidth,
                           .out_stride = n,
                           .rows = at_once,
                           .columns = own});
    }
  }
}

}  // namespace pyflow
