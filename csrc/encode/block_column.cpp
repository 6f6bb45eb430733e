#include "encode/block_column.h"

#include <algorithm>
#include <cstring>

#include "encode/encoder.h"
#include "encode/search/searches.h"
#include "quant/formats.def"

namespace pyflow {
namespace {

constexpr int64_t kLanes = quant::kLanes;
// Candidates per row that the beam search keeps (round.inl), and rows of a vector.
constexpr int64_t kPaths = 4, kRowsOfLanes = kLanes / kPaths;

// The levels of all weights in blocks of four rows, whose scales are chosen: RoundArgs::levels.
template <class Format>
class Levels {
 public:
  static constexpr bool kEven = Format::Search::kEven;
  static constexpr int64_t kLevels = Format::Search::kLevels, kBlock = Format::kBlock;

  void set(int64_t row, quant::Fields fields) {
    float levels[2][kBlock];
    for (int q = 0; q < (kEven ? 2 : static_cast<int>(kLevels)); ++q) {
      std::memset(fields.q, q, sizeof fields.q);
      Format::dequantize(Format::assemble(fields), levels[kEven ? q : 0]);
      if (!kEven) put(q, row, levels[0]);
    }
    if (!kEven) return;
    for (int64_t k = 0; k < kBlock; ++k) levels[1][k] -= levels[0][k];
    put(0, row, levels[0]);
    put(1, row, levels[1]);
  }
  const float* data() const { return data_; }

 private:
  void put(int64_t i, int64_t row, const float* of_weights) {
    for (int64_t k = 0; k < kBlock; ++k)
      std::fill_n(data_ + (i * kBlock + k) * kLanes + row * kPaths, kPaths, of_weights[k]);
  }
  alignas(64) float data_[(kEven ? 2 : kLevels) * kBlock * kLanes];
};

// Rounds up to four rows of blocks, whose scales are chosen, from the last weight to the first. x:
// what each target had become when its weight was rounded. squared: per row, the weighed squares of
// the rounding errors.
template <class Format>
void round_rows(const EncodeTable& table, const BlockColumn& c, int64_t first, int64_t n_rows,
                quant::Fields* fields, float* x, float* values, double* squared) {
  constexpr int64_t kBlock = Format::kBlock;
  Levels<Format> levels;
  alignas(64) float lanes[kBlock * kLanes], w[kBlock * kLanes];
  alignas(64) int32_t q[kBlock * kLanes], parents[kBlock * kLanes];
  for (int64_t row = 0; row < kRowsOfLanes; ++row) {
    const int64_t r = std::min(row, n_rows - 1);  // spare lanes
    levels.set(row, fields[r]);
    for (int64_t k = 0; k < kBlock; ++k) {
      const int64_t at = k * kLanes + row * kPaths;
      std::fill_n(lanes + at, kPaths, c.targets[(first + r) * kBlock + k]);
      std::fill_n(w + at, kPaths, c.w[(first + r) * kBlock + k]);
    }
  }
  table.round({.x = lanes,
               .w = w,
               .levels = levels.data(),
               .n_levels = Levels<Format>::kLevels,
               .even = Levels<Format>::kEven,
               .factors = c.factors,
               .factors_stride = c.factors_stride,
               .importance = c.importance,
               .n = kBlock,
               .q = q,
               .parents = parents});
  for (int64_t r = 0; r < n_rows; ++r, x += kBlock, values += kBlock) {
    int64_t path = 0;
    for (int64_t k = 0; k < kBlock; ++k) {
      const int64_t at = k * kLanes + r * kPaths + path;
      fields[r].q[k] = static_cast<uint8_t>(q[at]);
      x[k] = lanes[at];
      path = parents[at];
    }
    Format::dequantize(Format::assemble(fields[r]), values);
    squared[r] = 0.0;
    for (int64_t k = 0; k < kBlock; ++k) {
      const double rounded = static_cast<double>(x[k]) - static_cast<double>(values[k]);
      squared[r] += static_cast<double>(c.importance[k]) * rounded * rounded;
    }
  }
}

template <class Format>
void encode_blocks(const EncodeTable& table, DType dtype, const BlockColumn& c) {
  if constexpr (Format::kBlock > 1 && quant::Encodable<Format>) {
    constexpr int64_t kBlock = Format::kBlock;
    quant::Fields fields[kRowsAtOnce];
    float x[kRowsAtOnce * kBlock], values[kRowsAtOnce * kBlock];
    double squared[kRowsAtOnce];
    for (int turn = 0; turn < c.turns; ++turn) {
      const float* from = turn == 0 ? c.targets : x;
      for (int64_t i = 0; i < c.n_rows * kBlock; ++i)
        x[i] = std::clamp(from[i], -kLargestHalf, kLargestHalf);
      table.search[static_cast<size_t>(dtype)](
          {.x = x, .importance = c.importance, .n_cols = kBlock, .on_grid = c.on_grid && turn == 0},
          0, c.n_rows, fields);
      for (int64_t first = 0; first < c.n_rows; first += kRowsOfLanes)
        round_rows<Format>(table, c, first, std::min(kRowsOfLanes, c.n_rows - first),
                           fields + first, x + first * kBlock, values + first * kBlock,
                           squared + first);
      for (int64_t r = 0; r < c.n_rows; ++r) {
        if (!(squared[r] < c.least[r])) continue;
        c.least[r] = squared[r];
        std::copy_n(values + r * kBlock, kBlock, c.values + r * kBlock);
        const typename Format::Block block = Format::assemble(fields[r]);
        std::memcpy(c.out + static_cast<size_t>(r) * c.out_stride, &block, sizeof block);
      }
    }
  }
}

}  // namespace

void encode_column(const EncodeTable& table, DType dtype, const BlockColumn& c) {
  static constexpr decltype(&encode_column) kEncode[] = {
#define PYFLOW_FORMAT(name, id, block, bytes) encode_blocks<quant::name>,
#include "quant/formats.def"
#undef PYFLOW_FORMAT
  };
  kEncode[static_cast<size_t>(dtype)](table, dtype, c);
}

}  // namespace pyflow
