// x += the row of the token's position: learned, or sines and cosines (Vaswani et al. 2017). Comes
// first, so register h is free.
#include <algorithm>
#include <cmath>
#include <vector>

#include "model/blocks/block.h"

namespace pyflow {
namespace {

class Positions final : public Block {
 public:
  Positions(const BlockSpec& spec, BlockContext& c)
      : n_(c.stage.n_embd), offset_(spec.integer("offset")) {
    const int64_t n_positions = spec.integer("n_positions");
    if (!c.is_first)
      throw ShapeError("block 'positions': expected at the start of the first layer");
    if (spec.text("output") != "x") throw ShapeError("positions: expected output x");
    if (n_positions < 1 || n_positions > kv::kMaxPositions || offset_ < 0 ||
        offset_ > kv::kMaxPositions)
      throw ShapeError("positions: found " + std::to_string(n_positions) + " from row " +
                       std::to_string(offset_) + " on");
    if (spec.has("exponent")) {
      fill_waves(spec.text("exponent"), offset_ + n_positions);
    } else {
      table_ = &c.weights.matrix(spec.tensor("weight"), offset_ + n_positions, n_,
                                 Weights::Loop::Own, Weights::Format::AsStored);
      c.facts.occasional.insert(table_);
    }
    c.facts.n_positions = std::min(c.facts.n_positions, n_positions);
  }

  ScratchNeeds needs(CacheType) const override { return {}; }
  bool adds() const override { return true; }

  void forward(Step& s, Team& team) const override {
    const float* old = s.registers[0];
    float* learned = s.own_rows ? s.own[1] : s.shared[1];
    float* out = s.row_output(0);
    each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t at = r * s.stride, row = s.rows[static_cast<size_t>(r)].position + offset_;
        if (table_)
          table_->dequantize_row(row, learned + at, s.copy);
        else
          std::copy_n(waves_.data() + row * n_, n_, learned + at);
        if (old != out) std::copy_n(old + at, n_, out + at);
        s.kernels.add(out + at, learned + at, n_);
      }
    });
  }

 private:
  // Sines of position / 10000^e(k) in the first half of a row, cosines in the second; e(k) is
  // k / half, or k / (half - 1).
  void fill_waves(const std::string& exponent, int64_t n_rows) {
    const int64_t half = n_ / 2;
    if (n_ % 2 || half < 2 || (exponent != "half" && exponent != "half_less_one"))
      throw ShapeError("positions: expected waves of an even number of values, 4 or more, and " +
                       std::string("exponent half or half_less_one, found ") + std::to_string(n_) +
                       ", " + exponent);
    const auto last = static_cast<double>(exponent == "half" ? half : half - 1);
    waves_.resize(static_cast<size_t>(n_rows * n_));
    for (int64_t k = 0; k < half; ++k) {
      const double rate = std::pow(10000.0, -static_cast<double>(k) / last);
      for (int64_t row = 0; row < n_rows; ++row) {
        const double angle = static_cast<double>(row) * rate;
        waves_[static_cast<size_t>(row * n_ + k)] = static_cast<float>(std::sin(angle));
        waves_[static_cast<size_t>(row * n_ + half + k)] = static_cast<float>(std::cos(angle));
      }
    }
  }

  int64_t n_, offset_;
  const PackedTensor* table_ = nullptr;
  std::vector<float> waves_;
};

}  // namespace

std::unique_ptr<Block> make_positions(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<Positions>(spec, c);
}

}  // namespace pyflow
