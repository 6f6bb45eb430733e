// GPTQ for block formats: quantize blocks from last to first and push each rounding error onto the
// columns not yet quantized. Then sweep: encode each block again, with all others fixed.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <vector>

#include "encode/block_column.h"
#include "encode/encoder.h"
#include "quant/packed_tensor.h"

namespace pyflow {
namespace {

// Searches for the scales of a block under feedback. The second takes 1 to 8 % off the error, the
// third up to 2 % and the fourth up to 1 % more, most of it with blocks of 256 weights.
constexpr int kTurns = 3;
// Sweeps over all blocks, and searches for each block's scales in one. One sweep takes 3 to 4 % off
// the error, three take 5 to 6 %. Refitting an affine block's line to its codes by H after the
// searches gains less than 0.3 %, so it is not done.
constexpr int kSweeps = 1, kSweepTurns = 2;
static_assert(kSweeps > 0, "the last sweep adds up the cost of errors");

// Up to kRowsAtOnce rows of weights while they are encoded with feedback.
class RowsWithFeedback {
 public:
  RowsWithFeedback(const Encoder& to, const EncodeTable& table, const Feedback& feedback,
                   const BlockFactors& blocks)
      : table_(table),
        dtype_(to.dtype()),
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

  // Adopts other encodings of the same rows, one after the other at `rows`.
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
  // A block at its place in `out`, with its targets; the caller sets how errors count.
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

  // Copies a block of all rows out of rows of n_ floats.
  void cut(const std::vector<float>& whole, int64_t begin, std::vector<float>& block) const {
    for (int64_t r = 0; r < n_rows_; ++r)
      std::copy_n(whole.data() + r * n_ + begin, block_, block.data() + r * block_);
  }
  // Transposes rows of a block.
  void transpose(const std::vector<float>& block, std::vector<float>& columns) const {
    for (int64_t k = 0; k < block_; ++k)
      for (int64_t r = 0; r < n_rows_; ++r)
        columns[size(k, kRowsAtOnce) + static_cast<size_t>(r)] =
            block[size(r, block_) + static_cast<size_t>(k)];
  }
  void clamp_targets() {
    for (float& x : targets_) x = std::clamp(x, -kLargestHalf, kLargestHalf);
  }

  // Encodes from the last block to the first; from_after_ holds the targets of columns, with the
  // errors of all blocks behind them pushed onto them.
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
      encode_column(table_, dtype_, c);
      for (int64_t k = 0; k < block_; ++k)
        for (int64_t r = 0; r < n_rows_; ++r) error(begin + k)[r] = difference(begin, k, r);
      if (own > 0)
        add(error(begin), feedback_.row(group, own), c.factors_stride, block_,
            from_after_.data() + group * Triangles::kWidth, n_, own);
    }
  }

  // Encodes every block again. Before its turn from_after_ holds, in its columns, the pull of the
  // blocks behind it, sum e_j H_ji (computed for all blocks first); from_before_ that of the blocks
  // before it. So each pair of blocks is multiplied twice, not four times.
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
  // Adds the pull of a block's errors to columns [first, last) of its group.
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

  // Encodes a block again, with all others fixed.
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
    encode_column(table_, dtype_, c);
    for (int64_t k = 0; k < block_; ++k)
      for (int64_t r = 0; r < n_rows_; ++r) {
        const auto row = static_cast<size_t>(r);
        if (least[row] < before[row]) error(begin + k)[r] = difference(begin, k, r);
      }
  }
  // Targets: the best values for the block (BlockFactors).
  void aim(int64_t begin) {
    for (int64_t r = 0; r < n_rows_; ++r)
      for (int64_t k = 0; k < block_; ++k) {
        const size_t at = size(r, n_) + static_cast<size_t>(begin + k);
        own_[size(r, block_) + static_cast<size_t>(k)] = from_after_[at] + from_before_[at];
      }
    transpose(own_, columns_);
    cut(weights_, begin, targets_);
    add(columns_.data(), blocks_.inverse(begin), block_, block_, targets_.data(), block_, block_);
    clamp_targets();
  }
  // Per row, the cost of the block as it is.
  std::array<double, kRowsAtOnce> costs(int64_t begin) {
    std::array<double, kRowsAtOnce> costs = {};
    for (int64_t r = 0; r < n_rows_; ++r)
      for (int64_t k = 0; k < block_; ++k) {
        const size_t at = size(r, block_) + static_cast<size_t>(k);
        own_[at] = targets_[at] - (weight(begin + k, r) - error(begin + k)[r]);
      }
    transpose(own_, columns_);
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
  // Weight k of a block less its last found value.
  float difference(int64_t begin, int64_t k, int64_t r) const {
    return weight(begin + k, r) - values_[size(r, block_) + static_cast<size_t>(k)];
  }

  const EncodeTable& table_;
  DType dtype_;
  const Feedback& feedback_;
  const BlockFactors& blocks_;
  int64_t n_, block_;
  size_t block_bytes_, row_bytes_;
  int64_t n_rows_ = 0;
  uint8_t* out_ = nullptr;
  // Of whole rows; errors_ by column.
  std::vector<float> weights_, from_after_, from_before_, errors_;
  std::array<double, kRowsAtOnce> squared_ = {};         // per row, the cost of its errors
  std::vector<float> targets_, own_, values_, columns_;  // of a block; columns_ by column
};

// The diagonal of H, in its unit.
std::vector<float> squares(const Feedback& feedback) {
  std::vector<float> diagonal(static_cast<size_t>(feedback.shape().n_cols()));
  for (int64_t i = 0; i < std::ssize(diagonal); ++i)
    diagonal[static_cast<size_t>(i)] =
        feedback.h(i / Triangles::kWidth, i % Triangles::kWidth)[i % Triangles::kWidth];
  return diagonal;
}

}  // namespace

void recode(const SourceRows& from, const Encoder& to, const Feedback& feedback,
            const BlockFactors& blocks, uint8_t* out, RowLoss* losses) {
  const int64_t n = to.n_cols();
  RowsWithFeedback some(to, to.table_, feedback, blocks);
  const std::vector<float> diagonal = squares(feedback);
  const Encoder alone(to.dtype(), n, diagonal.data(), to.table_);
  std::vector<uint8_t> others(static_cast<size_t>(kRowsAtOnce) * to.row_bytes());
  for (int64_t first = 0; first < from.n_rows; first += kRowsAtOnce) {
    const int64_t at_once = std::min(kRowsAtOnce, from.n_rows - first);
    for (int64_t r = 0; r < at_once; ++r)
      dequantize(from.dtype, from.row(first + r, n), n, some.weights(r));
    to.check(some.weights(0), at_once, from.first_row + first);
    uint8_t* const encoded = out + static_cast<size_t>(first) * to.row_bytes();
    some.encode(at_once, encoded);
    for (int64_t r = 0; r < at_once; ++r) losses[first + r] = some.loss(r);
    // With nearly parallel columns the pushed errors may grow from block to block; and weights that
    // the format holds exactly need no feedback. So each row takes the better of the two encodings.
    alone.encode(some.weights(0), at_once, from.first_row + first, others.data());
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
