// h = W_down (act(W_gate h) * (W_up h)): SwiGLU and its relatives.
#include <array>

#include "model/blocks/blocks.h"

namespace pyflow {
namespace {

Activation activation(const std::string& name) {
  if (name == "silu") return Activation::Silu;
  if (name == "gelu_tanh") return Activation::GeluTanh;
  throw UnsupportedError("activation '" + name + "': expected silu or gelu_tanh");
}

class Ffn final : public Block {
 public:
  Ffn(const BlockSpec& spec, BlockContext& c)
      : in_(register_index(spec.text("in"))),
        out_(register_index(spec.text("out"))),
        n_embd_(c.stage.n_embd),
        n_ff_(spec.integer("n_ff")),
        act_(activation(spec.text("activation"))),
        gate_(c.weights.matrix(spec.text("gate"), n_ff_, n_embd_)),
        up_(c.weights.matrix(spec.text("up"), n_ff_, n_embd_)),
        down_(c.weights.matrix(spec.text("down"), n_embd_, n_ff_)) {}

  ScratchNeeds needs() const override {
    return {.floats_per_row = 2 * padded(n_ff_), .max_k = std::max(n_ff_, n_embd_)};
  }

  void forward(Step& s, Team& team) const override {
    const int64_t stride = padded(n_ff_);
    float* gate = s.temp;
    float* up = s.temp + s.n_rows * stride;
    const float* in = s.registers[in_];
    quantize_rows(s, team, in, s.stride, s.n_rows, n_embd_);
    const auto activate = [&](int64_t row, int64_t column, int64_t columns) {
      const int64_t at = row * stride + column;
      s.kernels.gate(act_, gate + at, up + at, columns);
    };
    multiply(s, team, std::array{Product{&gate_, gate, stride}, Product{&up_, up, stride}}, in,
             s.stride, s.n_rows, std::cref(activate));
    quantize_rows(s, team, gate, stride, s.n_rows, n_ff_);
    multiply(s, team, std::array{Product{&down_, s.product_output(out_), s.stride}}, gate, stride,
             s.n_rows);
  }

 private:
  size_t in_, out_;
  int64_t n_embd_, n_ff_;
  Activation act_;
  const PackedTensor &gate_, &up_, &down_;
};

}  // namespace

std::unique_ptr<Block> make_ffn(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<Ffn>(spec, c);
}

}  // namespace pyflow
