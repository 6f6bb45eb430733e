// y = x + norm(W_right W_left x), through few values (LAuReL: Menghani et al. 2024, section 2; Gemma
// 3n norms what it adds).
#include "model/blocks/block.h"
#include "model/blocks/linear.h"
#include "model/blocks/row_norm.h"

namespace pyflow {
namespace {

class Laurel final : public Block {
 public:
  Laurel(const BlockSpec& spec, BlockContext& c)
      : in_(register_index(spec.text("input"))),
        out_(register_index(spec.text("output"))),
        n_embd_(c.stage.n_embd),
        rank_(spec.integer("rank")),
        left_(&c.weights.matrix(spec.tensor("left"), rank_, n_embd_, Weights::Loop::Own,
                                Weights::Format::AsStored)),
        right_(&c.weights.matrix(spec.tensor("right"), n_embd_, rank_, Weights::Loop::Own,
                                 Weights::Format::AsStored)),
        norm_(c.weights, "rms", spec.number("eps"), spec.tensor("laurel_norm"), std::nullopt,
              n_embd_) {
    if (in_ == out_) throw ShapeError("laurel: expected an output other than the input");
  }

  ScratchNeeds needs(CacheType) const override {
    return {.floats_per_row = padded(rank_),
            .act_blocks_per_row = act_blocks(std::max(rank_, n_embd_)),
            .panel_cols = std::max(rank_, n_embd_)};
  }

  void forward(Step& s, Team& team) const override {
    const float* in = s.registers[in_];
    multiply(s, team, Product{left_, s.temp, padded(rank_)}, nullptr, all_rows(s, in, s.stride));
    const float* product = s.product_output(out_);
    multiply(s, team, Product{right_, s.registers[out_], s.stride}, nullptr,
             all_rows(s, s.temp, padded(rank_)));
    float* out = s.row_output(out_);
    each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        norm_(s.kernels, product + r * s.stride, n_embd_, out + r * s.stride);
        s.kernels.add(out + r * s.stride, in + r * s.stride, n_embd_);
      }
    });
  }

 private:
  size_t in_, out_;
  int64_t n_embd_, rank_;
  const PackedTensor *left_, *right_;
  RowNorm norm_;
};

}  // namespace

std::unique_ptr<Block> make_laurel(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<Laurel>(spec, c);
}

}  // namespace pyflow
