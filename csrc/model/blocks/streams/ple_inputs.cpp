// Per-layer embeddings (Gemma 3n): each token has, for each layer, n values beside its embedding,
//   p = (rms_norm(W x / sqrt(n_embd)) + scale * row of the token) / sqrt(2),
// where W and the table hold all layers side by side, and the norm is of each layer's values. They are
// carried from layer to layer (StageSpec::n_carried), where blocks `ple` read them. Tokens that the
// table lacks have those of token 0.
#include <algorithm>
#include <cmath>

#include "model/blocks/block.h"
#include "model/blocks/linear.h"
#include "model/blocks/row_norm.h"
#include "model/blocks/streams/carried.h"

namespace pyflow {
namespace {

class PleInputs final : public Block {
 public:
  PleInputs(const BlockSpec& spec, BlockContext& c)
      : n_embd_(c.stage.n_embd),
        n_(spec.integer("n")),
        n_layers_(spec.integer("n_layers")),
        n_vocab_(spec.integer("n_vocab")),
        scale_(spec.number("scale")),
        at_(carried(c, spec, "at", n_ * n_layers_)) {
    if (!c.is_first)
      throw ShapeError("block 'ple_inputs': expected at the start of the first layer");
    table_ = &c.weights.matrix(spec.tensor("embed"), n_vocab_, width());
    c.facts.occasional.insert(table_);
    c.facts.unadapted.insert(table_);
    project_ = &c.weights.matrix(spec.tensor("project"), width(), n_embd_, Weights::Loop::Own,
                                 Weights::Format::AsStored);
    norm_ = RowNorm(c.weights, "rms", spec.number("eps"), spec.tensor("norm"), std::nullopt, n_);
  }

  ScratchNeeds needs(CacheType) const override {
    return {.floats_per_row = padded(width()),
            .row_floats_per_row = padded(width()),
            .act_blocks_per_row = act_blocks(n_embd_),
            .panel_cols = n_embd_};
  }

  void forward(Step& s, Team& team) const override {
    const int64_t stride = padded(width());
    multiply(s, team, Product{project_, s.temp, stride}, nullptr,
             all_rows(s, s.registers[0], s.stride));
    const float to_project = 1.0f / std::sqrt(static_cast<float>(n_embd_)), half = std::sqrt(0.5f);
    each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* out = s.carried + r * s.carried_stride + at_;
        float* embedded = s.row_temp + r * stride;
        std::copy_n(s.temp + r * stride, width(), out);
        s.kernels.scale(out, to_project, width());
        for (int64_t i = 0; i < n_layers_; ++i) norm_(s.kernels, out + i * n_, n_, out + i * n_);
        const int32_t token = s.tokens[static_cast<size_t>(r)];
        table_->dequantize_row(token < n_vocab_ ? token : 0, embedded, s.copy);
        s.kernels.add_scaled(out, embedded, scale_, width());
        s.kernels.scale(out, half, width());
      }
    });
    if (s.own_rows) team.barrier();  // before another block writes what was read here
  }

 private:
  int64_t width() const { return n_ * n_layers_; }

  int64_t n_embd_, n_, n_layers_, n_vocab_;
  float scale_;
  int64_t at_;
  const PackedTensor *table_, *project_;
  RowNorm norm_;
};

}  // namespace

std::unique_ptr<Block> make_ple_inputs(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<PleInputs>(spec, c);
}

}  // namespace pyflow
