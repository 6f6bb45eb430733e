// x += the learned row of the token's type. Register h is free.
#include <algorithm>

#include "model/blocks/block.h"

namespace pyflow {
namespace {

class TokenTypes final : public Block {
 public:
  TokenTypes(const BlockSpec& spec, BlockContext& c) : n_(c.stage.n_embd) {
    const int64_t n_types = spec.integer("n_types");
    if (spec.text("output") != "x") throw ShapeError("token_types: expected output x");
    table_ = c.weights.vector(spec.tensor("weight"), n_types * n_);
    c.facts.n_types = n_types;
  }

  ScratchNeeds needs(CacheType) const override { return {}; }
  bool adds() const override { return true; }

  void forward(Step& s, Team& team) const override {
    const float* old = s.registers[0];
    float* out = s.row_output(0);
    each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t at = r * s.stride,
                      type = s.types.empty() ? 0 : s.types[static_cast<size_t>(r)];
        if (old != out) std::copy_n(old + at, n_, out + at);
        s.kernels.add(out + at, table_ + type * n_, n_);
      }
    });
  }

 private:
  int64_t n_;
  const float* table_;
};

}  // namespace

std::unique_ptr<Block> make_token_types(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<TokenTypes>(spec, c);
}

}  // namespace pyflow
