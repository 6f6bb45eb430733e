// A recurrent unit in the place of self-attention (Kim et al. 2019, "From Research to Production and
// Back"): f = sigmoid(W_f x + b_f), c = f c' + (1 - f) W x, out = relu(c), where c' is c of the
// position before, or 0 (state_cells.h).
#include <algorithm>
#include <array>
#include <cstring>

#include "model/blocks/block.h"
#include "model/blocks/linear.h"
#include "model/blocks/state_cells.h"
#include "model/group/group.h"

namespace pyflow {
namespace {

// Dims that one thread computes for all rows, which follow each other.
constexpr int64_t kDims = 64;

class Ssru final : public Block {
 public:
  Ssru(const BlockSpec& spec, BlockContext& c)
      : in_(register_index(spec.text("input"))),
        out_(register_index(spec.text("output"))),
        n_(c.stage.n_embd),
        layer_(c.facts.kv_layers.size()),
        shares_(Cut::tiles(n_), c.stage.member),
        n_own_(shares_.own.size()),
        forget_(&c.weights.rows_of(spec.tensor("forget"), n_, n_, shares_.own)),
        value_(&c.weights.rows_of(spec.tensor("value"), n_, n_, shares_.own,
                                  Weights::Loop::Continued)),
        forget_bias_(from(c.weights.vector_or_null(spec.tensor_or_none("forget_bias"), n_),
                          shares_.own.begin)) {
    c.facts.kv_layers.push_back(state_cells("ssru", std::max<int64_t>(1, n_own_), 2));
    c.facts.kv_ropes.push_back(std::nullopt);
  }

  ScratchNeeds needs(CacheType) const override {
    return {.floats_per_row = 2 * padded(n_own_),
            .act_blocks_per_row = act_blocks(n_),
            .panel_cols = n_};
  }

  void forward(Step& s, Team& team) const override {
    const int64_t stride = padded(n_own_);
    float *gates = s.temp, *values = s.temp + s.n_rows * stride;
    const std::array products = {Product{forget_, gates, stride}, Product{value_, values, stride}};
    multiply(s, team, products, all_rows(s, s.registers[in_], s.stride));
    float* out = s.product_output(out_);
    team.for_each((n_own_ + kDims - 1) / kDims, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        for (int64_t r = 0; r < s.n_rows; ++r) {
          const int64_t at = i * kDims, n = std::min(kDims, n_own_ - at);
          step(s, r, at, n, gates + r * stride + at, values + r * stride + at,
               out + r * s.stride + shares_.own.begin + at);
        }
    });
    gather(s, team, out, s.stride, shares_);
  }

  std::vector<int64_t> rounds(const KernelTable&, Regime) const override {
    return {wire_nbytes(Form::F32, shares_)};
  }

 private:
  // n dims of a row. Rows come in an order in which each follows the one before its position.
  void step(const Step& s, int64_t row, int64_t at, int64_t n, float* gate, const float* value,
            float* out) const {
    const KvView& kv = s.kv->view(layer_);
    const RowView& seen = s.kv->views(layer_)[static_cast<size_t>(s.first_row + row)];
    const auto nbytes = static_cast<size_t>(n) * sizeof(float);
    float c[kDims] = {};
    if (seen.n > 1) std::memcpy(c, state_at(kv, seen.slots[seen.n - 2], at), nbytes);
    if (forget_bias_) s.kernels.add(gate, forget_bias_ + at, n);
    s.kernels.scale(gate, 0.5f, n);
    s.kernels.softcap(gate, 1.0f, n);
    for (int64_t i = 0; i < n; ++i) {
      const float f = 0.5f + 0.5f * gate[i];  // the sigmoid, by tanh(x / 2)
      c[i] = f * c[i] + (1.0f - f) * value[i];
      out[i] = c[i] > 0.0f ? c[i] : 0.0f;
    }
    std::memcpy(state_at(kv, seen.slots[seen.n - 1], at), c, nbytes);
  }

  size_t in_, out_;
  int64_t n_;
  size_t layer_;
  Shares shares_;  // of dims, among members
  int64_t n_own_;
  const PackedTensor *forget_, *value_;
  const float* forget_bias_;
};

}  // namespace

std::unique_ptr<Block> make_ssru(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<Ssru>(spec, c);
}

}  // namespace pyflow
