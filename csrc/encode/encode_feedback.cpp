// Blocks whose columns make up for the errors of others.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "encode/encoder.h"
#include "encode/search/searches.h"
#include "quant/formats.def"
#include "quant/packed_tensor.h"

namespace pyflow {
namespace {

// Searches for the scales of a block under feedback. The second takes 1 to 8 % off the error, the
// third up to 2 % and the fourth up to 1 % more, most of it where blocks are of 256 weights.
constexpr int kTurns = 3;
// How often each block is encoded again when those behind it are known, too, and by how many
// searches. Once takes 3 to 4 % off the error, three times 5 to 6 %. That a line is then made the
// best for its codes, by H, has no use after the searches: less than 0.3 %.
constexpr int kSweeps = 1, kSweepTurns = 2;
static_assert(kSweeps > 0, "what errors cost is counted by the last sweep");
constexpr int64_t kRowsAtOnce = 32;  // for which factors are read once

constexpr int64_t kLanes = quant::kLanes;
// Ways to round a row that are kept (round.inl), and rows that lie side by side.
constexpr int64_t kPaths = 4, kRowsOfLanes = kLanes / kPaths;

// Blocks of several rows that lie in the same columns.
struct BlockColumn {
  int64_t n_rows;
  const float* targets;     // rows of a block: what it is to be before any error of its own
  const float* w;           // what its errors are counted from
  const float* importance;  // of the block's columns
  const float* factors;     // [k][i]: what an error of column k adds to column i before it
  int64_t factors_stride;
  int turns;     // of a search for scales
  bool on_grid;  // as SearchArgs has it, of the targets
  uint8_t* out;
  size_t out_stride;
  float* values;  // rows of a block: what `out` says
  double* least;  // of each row, what that costs: only blocks that cost less are taken
};

// The levels of the weights of blocks of four rows, whose scales are settled, for a kernel.
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

// Encodes up to four rows of blocks, their scales being settled, from the last weight to the first,
// each error moving those before it: to `x`, what they are to be when their turns come. squared: of
// each row the squares of what rounding leaves of that, weighed.
template <class Format>
void round_rows(const EncodeTable& table, const BlockColumn& c, int64_t first, int64_t n_rows,
                quant::Fields* fields, float* x, float* values, double* squared) {
  constexpr int64_t kBlock = Format::kBlock;
  Levels<Format> levels;
  alignas(64) float lanes[kBlock * kLanes], w[kBlock * kLanes];
  alignas(64) int32_t q[kBlock * kLanes], parents[kBlock * kLanes];
  for (int64_t row = 0; row < kRowsOfLanes; ++row) {
    const int64_t r = std::min(row, n_rows - 1);  // lanes left over
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

// Scales are searched for what the weights are to be before any error of their block, and again for
// what they were to be when their turns came. Of each row the best block is taken.
template <class Format>
void encode_column(const EncodeTable& table, DType dtype, const BlockColumn& c) {
  if constexpr (Format::kBlock > 1) {
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

using EncodeColumn = void (*)(const EncodeTable&, DType, const BlockColumn&);
constexpr EncodeColumn kEncodeColumn[] = {
#define PYFLOW_FORMAT(name, id, block, bytes) encode_column<quant::name>,
#include "quant/formats.def"
#undef PYFLOW_FORMAT
};

// Some rows of weights on their way into blocks, by feedback.
class RowsWithFeedback {
 public:
  RowsWithFeedback(const Encoder& to, const EncodeTable& table, const Feedback& feedback,
                   const BlockFactors& blocks)
      : table_(table),
        dtype_(to.dtype()),
        encode_column_(kEncodeColumn[static_cast<size_t>(to.dtype())]),
        feedback_(feedback),
        blocks_(blocks),
        n_(to.n_cols()),
        block_(info(to.dtype()).block),
        block_bytes_(pyflow::row_bytes(dtype_, block_)),
        row_bytes_(to.row_bytes()),
        weights_(size(kRowsAtOnce, n_)),
        from_after_(weights_.size()),
        from_before_(weights_.size()),
        errors_(weights_.size()),
        targets_(size(kRowsAtOnce, block_)),
        own_(targets_.size()),
        values_(targets_.size()),
        columns_(targets_.size()) {}

  // n_cols weights of row r.
  float* weights(int64_t r) { return weights_.data() + r * n_; }

  // The first n_rows rows.
  void encode(int64_t n_rows, uint8_t* out) {
    n_rows_ = n_rows;
    out_ = out;
    round();
    for (int i = 0; i < kSweeps; ++i) sweep();
  }

  // What rows that were encoded otherwise, one after the other at `rows`, have of the weights.
  void take(const uint8_t* rows) {
    std::vector<float> values(static_cast<size_t>(n_));
    for (int64_t r = 0; r < n_rows_; ++r) {
      dequantize(dtype_, rows + static_cast<size_t>(r) * row_bytes_, n_, values.data());
      for (int64_t i = 0; i < n_; ++i) error(i)[r] = weight(i, r) - values[static_cast<size_t>(i)];
    }
    begin_to_count();
    for (int64_t begin = 0; begin < n_; begin += block_) count(begin);
  }

  RowLoss loss(int64_t r) const {
    RowLoss loss;
    loss.squared = std::max(squared_[static_cast<size_t>(r)], 0.0);  // rounding, if hardly any
    for (int64_t i = 0; i < n_; ++i) {
      const auto w = static_cast<double>(weight(i, r)), d = static_cast<double>(error(i)[r]);
      loss.power += static_cast<double>(feedback_.diagonal()[i]) * w * w;
      loss.absolute += std::fabs(d);
      loss.largest = std::max(loss.largest, std::fabs(d));
    }
    return loss;
  }

 private:
  static size_t size(int64_t a, int64_t b) { return static_cast<size_t>(a * b); }
  // Of column i in all rows: the weight less its value.
  float* error(int64_t i) { return errors_.data() + i * kRowsAtOnce; }
  const float* error(int64_t i) const { return errors_.data() + i * kRowsAtOnce; }

  // out[r][0 .. columns) += sum over k < n of a[k][r] * b[k][..].
  void add(const float* a, const float* b, int64_t b_stride, int64_t n, float* out,
           int64_t out_stride, int64_t columns) const {
    table_.add_outer({.a = a,
                      .a_stride = kRowsAtOnce,
                      .b = b,
                      .b_stride = b_stride,
                      .n = n,
                      .out = out,
                      .out_stride = out_stride,
                      .rows = n_rows_,
                      .columns = columns});
  }
  // A block with its targets, into its place; how errors count is left to the caller.
  BlockColumn column(int64_t begin, double* least) {
    BlockColumn c = {};
    c.n_rows = n_rows_;
    c.targets = targets_.data();
    c.out = out_ + static_cast<size_t>(begin / block_) * block_bytes_;
    c.out_stride = row_bytes_;
    c.values = values_.data();
    c.least = least;
    return c;
  }

  // Of a block in all rows, from rows of n_ floats into rows of a block, and from these by column.
  void cut(const std::vector<float>& whole, int64_t begin, std::vector<float>& block) const {
    for (int64_t r = 0; r < n_rows_; ++r)
      std::copy_n(whole.data() + r * n_ + begin, block_, block.data() + r * block_);
  }
  void turn(const std::vector<float>& block, std::vector<float>& columns) const {
    for (int64_t k = 0; k < block_; ++k)
      for (int64_t r = 0; r < n_rows_; ++r)
        columns[size(k, kRowsAtOnce) + static_cast<size_t>(r)] =
            block[size(r, block_) + static_cast<size_t>(k)];
  }
  void clamp_targets() {
    for (float& x : targets_) x = std::clamp(x, -kLargestHalf, kLargestHalf);
  }

  // From the last block to the first, each error moving what comes before it: from_after_ has what
  // columns are to be.
  void round() {
    std::array<double, kRowsAtOnce> least;
    std::copy_n(weights_.data(), n_rows_ * n_, from_after_.data());
    for (int64_t begin = n_ - block_; begin >= 0; begin -= block_) {
      const int64_t group = begin / Triangles::kWidth, own = begin % Triangles::kWidth;
      cut(from_after_, begin, targets_);
      clamp_targets();
      cut(weights_, begin, own_);
      least.fill(std::numeric_limits<double>::infinity());
      BlockColumn c = column(begin, least.data());
      c.w = own_.data();
      c.importance = feedback_.importance() + begin;
      c.factors = feedback_.row(group, own) + own;
      c.factors_stride = feedback_.shape().width(group);
      c.turns = kTurns;
      c.on_grid = true;
      encode_column_(table_, dtype_, c);
      for (int64_t k = 0; k < block_; ++k)
        for (int64_t r = 0; r < n_rows_; ++r) error(begin + k)[r] = difference(begin, k, r);
      if (own > 0)
        add(error(begin), feedback_.row(group, own), c.factors_stride, block_,
            from_after_.data() + group * Triangles::kWidth, n_, own);
    }
  }

  // Encodes every block again. from_after_ has what the errors of the blocks behind each add up to
  // in its columns, sum e_j H_ji, before the first of them is encoded; from_before_ has that of
  // those before it when its turn comes. So each pair of blocks is multiplied twice, not four
  // times.
  void sweep() {
    std::fill(from_after_.begin(), from_after_.end(), 0.0f);
    for (int64_t begin = 0; begin < n_; begin += block_)
      add_pull(begin, 0, begin % Triangles::kWidth, from_after_);
    begin_to_count();
    for (int64_t begin = 0; begin < n_; begin += block_) {
      improve(begin);
      count(begin);
    }
  }
  // What the errors of a block add to columns [first, last) of its group.
  void add_pull(int64_t begin, int64_t first, int64_t last, std::vector<float>& to) {
    if (first == last) return;
    const int64_t group = begin / Triangles::kWidth;
    add(error(begin), feedback_.h(group, begin % Triangles::kWidth) + first,
        feedback_.shape().width(group), block_, to.data() + group * Triangles::kWidth + first, n_,
        last - first);
  }

  // e^T H e, block after block: e_b^T (H_bb e_b + 2 sum over j before the block of H_bj e_j).
  void begin_to_count() {
    std::fill(from_before_.begin(), from_before_.end(), 0.0f);
    squared_.fill(0.0);
  }
  void count(int64_t begin) {
    const int64_t group = begin / Triangles::kWidth, own = begin % Triangles::kWidth,
                  width = feedback_.shape().width(group);
    cut(from_before_, begin, own_);
    for (float& x : own_) x *= 2.0f;
    add(error(begin), feedback_.h(group, own) + own, width, block_, own_.data(), block_, block_);
    const auto unit = static_cast<double>(feedback_.unit(group));
    for (int64_t r = 0; r < n_rows_; ++r)
      for (int64_t k = 0; k < block_; ++k)
        squared_[static_cast<size_t>(r)] +=
            unit * static_cast<double>(error(begin + k)[r]) *
            static_cast<double>(own_[size(r, block_) + static_cast<size_t>(k)]);
    add_pull(begin, own + block_, width, from_before_);
  }

  // Encodes a block again, all others being what they are.
  void improve(int64_t begin) {
    aim(begin);
    std::array<double, kRowsAtOnce> least = costs(begin);
    const std::array<double, kRowsAtOnce> before = least;
    BlockColumn c = column(begin, least.data());
    c.w = targets_.data();
    c.importance = blocks_.importance(begin);
    c.factors = blocks_.factors(begin);
    c.factors_stride = block_;
    c.turns = kSweepTurns;
    c.on_grid = false;
    encode_column_(table_, dtype_, c);
    for (int64_t k = 0; k < block_; ++k)
      for (int64_t r = 0; r < n_rows_; ++r) {
        const auto row = static_cast<size_t>(r);
        if (least[row] < before[row]) error(begin + k)[r] = difference(begin, k, r);
      }
  }
  // The targets: what would be best for the block to hold (BlockFactors).
  void aim(int64_t begin) {
    for (int64_t r = 0; r < n_rows_; ++r)
      for (int64_t k = 0; k < block_; ++k) {
        const size_t at = size(r, n_) + static_cast<size_t>(begin + k);
        own_[size(r, block_) + static_cast<size_t>(k)] = from_after_[at] + from_before_[at];
      }
    turn(own_, columns_);
    cut(weights_, begin, targets_);
    add(columns_.data(), blocks_.inverse(begin), block_, block_, targets_.data(), block_, block_);
    clamp_targets();
  }
  // By row, what the block costs as it is.
  std::array<double, kRowsAtOnce> costs(int64_t begin) {
    std::array<double, kRowsAtOnce> costs = {};
    for (int64_t r = 0; r < n_rows_; ++r)
      for (int64_t k = 0; k < block_; ++k) {
        const size_t at = size(r, block_) + static_cast<size_t>(k);
        own_[at] = targets_[at] - (weight(begin + k, r) - error(begin + k)[r]);
      }
    turn(own_, columns_);
    add(columns_.data(), blocks_.factors(begin), block_, block_, own_.data(), block_, block_);
    for (int64_t r = 0; r < n_rows_; ++r)
      for (int64_t k = 0; k < block_; ++k) {
        const auto d = static_cast<double>(own_[size(r, block_) + static_cast<size_t>(k)]);
        costs[static_cast<size_t>(r)] += static_cast<double>(blocks_.importance(begin)[k]) * d * d;
      }
    return costs;
  }
  float weight(int64_t i, int64_t r) const {
    return weights_[size(r, n_) + static_cast<size_t>(i)];
  }
  // Of weight k of a block, and the value that was found last.
  float difference(int64_t begin, int64_t k, int64_t r) const {
    return weight(begin + k, r) - values_[size(r, block_) + static_cast<size_t>(k)];
  }

  const EncodeTable& table_;
  DType dtype_;
  EncodeColumn encode_column_;
  const Feedback& feedback_;
  const BlockFactors& blocks_;
  int64_t n_, block_;
  size_t block_bytes_, row_bytes_;
  int64_t n_rows_ = 0;
  uint8_t* out_ = nullptr;
  // Of whole rows; errors_ by column.
  std::vector<float> weights_, from_after_, from_before_, errors_;
  std::array<double, kRowsAtOnce> squared_ = {};         // of each row, what its errors cost
  std::vector<float> targets_, own_, values_, columns_;  // of a block; columns_ by column
};

// The diagonal of H, by its unit.
std::vector<float> squares(const Feedback& feedback) {
  std::vector<float> diagonal(static_cast<size_t>(feedback.shape().n_cols()));
  for (int64_t i = 0; i < std::ssize(diagonal); ++i)
    diagonal[static_cast<size_t>(i)] =
        feedback.h(i / Triangles::kWidth, i % Triangles::kWidth)[i % Triangles::kWidth];
  return diagonal;
}

}  // namespace

void recode(DType from, const uint8_t* rows, int64_t n_rows, int64_t first_row, const Encoder& to,
            const Feedback& feedback, const BlockFactors& blocks, uint8_t* out, RowLoss* losses) {
  const int64_t n = to.n_cols();
  RowsWithFeedback some(to, to.table_, feedback, blocks);
  const std::vector<float> diagonal = squares(feedback);
  const Encoder alone(to.dtype(), n, diagonal.data(), to.table_);
  std::vector<uint8_t> others(static_cast<size_t>(kRowsAtOnce) * to.row_bytes());
  for (int64_t first = 0; first < n_rows; first += kRowsAtOnce) {
    const int64_t at_once = std::min(kRowsAtOnce, n_rows - first);
    for (int64_t r = 0; r < at_once; ++r)
      dequantize(from, rows + static_cast<size_t>(first + r) * row_bytes(from, n), n,
                 some.weights(r));
    to.check(some.weights(0), at_once, first_row + first);
    uint8_t* const encoded = out + static_cast<size_t>(first) * to.row_bytes();
    some.encode(at_once, encoded);
    for (int64_t r = 0; r < at_once; ++r) losses[first + r] = some.loss(r);
    // Where columns go together closely, what they make up for may grow from block to block; and
    // weights that a format has exactly need nothing of it.
    alone.encode(some.weights(0), at_once, first_row + first, others.data());
    some.take(others.data());
    for (int64_t r = 0; r < at_once; ++r) {
      const RowLoss other = some.loss(r);
      if (!(other.squared < losses[first + r].squared)) continue;
      losses[first + r] = other;
      const size_t at = static_cast<size_t>(r) * to.row_bytes();
      std::copy_n(others.data() + at, to.row_bytes(), encoded + at);
    }
  }
}

}  // namespace pyflow
