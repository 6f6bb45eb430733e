// x *= factor, a number of the model's, times one that is a tensor if the model has it.
#include <algorithm>

#include "model/blocks/block.h"

namespace pyflow {
namespace {

class Scale final : public Block {
 public:
  Scale(const BlockSpec& spec, BlockContext& c)
      : x_(register_index(spec.text("output"))), factor_(spec.number("factor")) {
    if (spec.text("input") != spec.text("output"))
      throw ShapeError("scale: expected one register for input and output");
    if (const auto own = spec.tensor_or_none("weight")) factor_ *= c.weights.vector(*own, 1)[0];
  }

  bool adds() const override { return true; }
  ScratchNeeds needs(CacheType) const override { return {}; }

  void forward(Step& s, Team& team) const override {
    const float* old = s.registers[x_];
    float* out = s.row_output(x_);
    each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
      const int64_t at = begin * s.stride, n = (end - begin) * s.stride;
      if (old != out) std::copy_n(old + at, n, out + at);
      s.kernels.scale(out + at, factor_, n);
    });
  }

 private:
  size_t x_;
  float factor_;
};

}  // namespace

std::unique_ptr<Block> make_scale(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<Scale>(spec, c);
}

}  // namespace pyflow
