// x += the learned row of the token's position. Comes first, so register h is free.
#include <algorithm>

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
    table_ = &c.weights.matrix(spec.tensor("weight"), offset_ + n_positions, n_, Weights::Loop::Own,
                               Weights::Format::AsStored);
    c.facts.occasional.insert(table_);
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
        table_->dequantize_row(row, learned + at, s.copy);
        if (old != out) std::copy_n(old + at, n_, out + at);
        s.kernels.add(out + at, learned + at, n_);
      }
    });
  }

 private:
  int64_t n_, offset_;
  const PackedTensor* table_;
};

}  // namespace

std::unique_ptr<Block> make_positions(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<Positions>(spec, c);
}

}  // namespace pyflow
