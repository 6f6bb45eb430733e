// y = W_out (act(W_gate (scale * x)) * p): lets in the values p that a token has for this layer
// (ple_inputs.cpp). scale: a vector, if the model has it.
#include <algorithm>

#include "model/blocks/activation.h"
#include "model/blocks/block.h"
#include "model/blocks/linear.h"
#include "model/blocks/streams/carried.h"

namespace pyflow {
namespace {

class Ple final : public Block {
 public:
  Ple(const BlockSpec& spec, BlockContext& c)
      : in_(register_index(spec.text("input"))),
        out_(register_index(spec.text("output"))),
        n_embd_(c.stage.n_embd),
        n_(spec.integer("n")),
        at_(carried(c, spec, "at", n_)),
        act_(activation_named(spec.text("activation"))),
        gate_(&c.weights.matrix(spec.tensor("gate"), n_, n_embd_)),
        project_(&c.weights.matrix(spec.tensor("project"), n_embd_, n_)),
        scale_(c.weights.vector_or_null(spec.tensor_or_none("scale"), n_embd_)) {}

  ScratchNeeds needs(CacheType) const override {
    return {.floats_per_row = padded(n_),
            .row_floats_per_row = scale_ ? padded(n_embd_) : 0,
            .act_blocks_per_row = act_blocks(std::max(n_, n_embd_)),
            .panel_cols = std::max(n_, n_embd_)};
  }

  void forward(Step& s, Team& team) const override {
    const float* in = s.registers[in_];
    int64_t stride = s.stride;
    if (scale_) {
      in = s.row_temp;
      stride = padded(n_embd_);
      each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r)
          for (int64_t i = 0; i < n_embd_; ++i)
            s.row_temp[r * stride + i] = s.registers[in_][r * s.stride + i] * scale_[i];
      });
    }
    const auto let_in = [&](int64_t row, int64_t column, int64_t columns) {
      s.kernels.gate(act_, s.temp + row * padded(n_) + column,
                     s.carried + row * s.carried_stride + at_ + column, columns);
    };
    const Product gate = {gate_, s.temp, padded(n_)};
    multiply(s, team, std::span(&gate, 1), all_rows(s, in, stride), std::cref(let_in));
    multiply(s, team, Product{project_, s.product_output(out_), s.stride}, nullptr,
             all_rows(s, s.temp, padded(n_)));
  }

 private:
  size_t in_, out_;
  int64_t n_embd_, n_, at_;
  Activation act_;
  const PackedTensor *gate_, *project_;
  const float* scale_;
};

}  // namespace

std::unique_ptr<Block> make_ple(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<Ple>(spec, c);
}

}  // namespace pyflow
