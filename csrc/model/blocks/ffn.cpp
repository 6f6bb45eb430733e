// h = W_down (act(W_gate h) * (W_up h)), SwiGLU and its relatives, or W_down act(W_up h); biases if
// the model has them.
#include <array>

#include "model/blocks/activation.h"
#include "model/blocks/block.h"
#include "model/blocks/linear.h"
#include "model/device/device_step.h"
#include "model/group/group.h"

namespace pyflow {
namespace {

class Ffn final : public Block {
 public:
  Ffn(const BlockSpec& spec, BlockContext& c)
      : in_(register_index(spec.text("input"))),
        out_(register_index(spec.text("output"))),
        n_embd_(c.stage.n_embd),
        n_ff_(spec.integer("n_ff")),
        act_(activation_named(spec.text("activation"))),
        inner_({n_ff_, kInnerUnit}, c.stage.member),
        outer_(Cut::tiles(n_embd_), c.stage.member) {
    Weights& w = c.weights;
    const auto inner = [&](const TensorRef& ref) {
      return &w.rows_of(ref, n_ff_, n_embd_, inner_.own);
    };
    if (const auto gate = spec.tensor_or_none("gate")) gate_ = inner(*gate);
    up_ = inner(spec.tensor("up"));
    down_ = &w.rows_of(spec.tensor("down"), n_embd_, n_ff_, outer_.own);
    gate_bias_ = from(w.vector_or_null(spec.tensor_or_none("gate_bias"), n_ff_), inner_.own.begin);
    up_bias_ = from(w.vector_or_null(spec.tensor_or_none("up_bias"), n_ff_), inner_.own.begin);
    down_bias_ =
        from(w.vector_or_null(spec.tensor_or_none("down_bias"), n_embd_), outer_.own.begin);
    if (gate_bias_ && !gate_) throw ShapeError("ffn: gate_bias: there is no gate");
  }

  ScratchNeeds needs(CacheType) const override {
    return {.floats_per_row = (gate_ ? 2 : 1) * padded(n_ff_),
            .act_blocks_per_row = act_blocks(std::max(n_ff_, n_embd_)),
            .panel_cols = std::max(n_ff_, n_embd_)};
  }

  void forward(Step& s, Team& team) const override {
    const int64_t stride = padded(n_ff_);
    float* gate = gate_ ? s.temp : nullptr;
    float* up = gate ? gate + s.n_rows * stride : s.temp;
    const float* in = s.registers[in_];
    const int64_t first = inner_.own.begin;
    const auto activate = [&](int64_t row, int64_t column, int64_t columns) {
      const int64_t at = row * stride + first + column;
      if (up_bias_) s.kernels.add(up + at, up_bias_ + column, columns);
      if (!gate) return s.kernels.activate(act_, up + at, columns);
      if (gate_bias_) s.kernels.add(gate + at, gate_bias_ + column, columns);
      s.kernels.gate(act_, gate + at, up + at, columns);
    };
    const std::array products = {Product{gate_, gate ? gate + first : nullptr, stride},
                                 Product{up_, up + first, stride}};
    multiply(s, team, std::span(products).last(gate ? 2 : 1), all_rows(s, in, s.stride),
             std::cref(activate));
    float* inner = gate ? gate : up;
    gather(s, team, inner, stride, inner_);
    float* out = s.product_output(out_);
    multiply(s, team, Product{down_, out + outer_.own.begin, s.stride}, down_bias_,
             all_rows(s, inner, stride));
    gather(s, team, out, s.stride, outer_);
  }

  void device_needs(DeviceNeeds& needs) const override {
    needs.vector(gate_bias_, n_ff_);
    needs.vector(up_bias_, n_ff_);
    needs.vector(down_bias_, n_embd_);
  }

  void record(DeviceStep& s) const override {
    const auto up = s.take(n_ff_), inner = gate_ ? s.take(n_ff_) : up;
    const Cut ff = Cut::tiles(n_ff_), embd = Cut::tiles(n_embd_);
    s.each([&](DeviceMember& m) {
      const FloatRows u = up[m.number], i = inner[m.number];
      const std::array products = {DeviceProduct{up_, u}, DeviceProduct{gate_, i}};
      m.multiply(std::span(products).first(gate_ ? 2 : 1), m.registers[in_], m.n_rows);
      const Share own = m.rows_of(ff);
      m.add(u, up_bias_, m.n_rows, n_ff_, own);
      if (gate_) {
        m.add(i, gate_bias_, m.n_rows, n_ff_, own);
        m.ops.gate(m.queue, act_, columns_of(i, own.begin), columns_of(u, own.begin), m.n_rows,
                   own.size());
      } else {
        m.ops.activate(m.queue, act_, columns_of(u, own.begin), m.n_rows, own.size());
      }
    });
    s.gather(inner, ff);
    s.each([&](DeviceMember& m) {
      m.multiply({down_, m.registers[out_]}, embd, down_bias_, inner[m.number], m.n_rows);
    });
    s.gather(s.register_rows(out_), embd);
  }

 private:
  size_t in_, out_;
  int64_t n_embd_, n_ff_;
  Activation act_;
  Shares inner_, outer_;  // of members of a group
  const PackedTensor *gate_ = nullptr, *up_, *down_;
  const float *gate_bias_, *up_bias_, *down_bias_;
};

}  // namespace

std::unique_ptr<Block> make_ffn(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<Ffn>(spec, c);
}

}  // namespace pyflow
