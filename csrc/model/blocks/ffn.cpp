// h = W_down (act(W_gate h) * (W_up h)), SwiGLU and its relatives, or W_down act(W_up h); biases if
// the model has them. With a cutoff c gates g become max(0, g - mean(g) - c * deviation(g)) first, over
// all of a row, so that few remain (Gemma 3n).
#include <algorithm>
#include <array>
#include <cmath>
#include <optional>

#include "model/blocks/activation.h"
#include "model/blocks/branch.h"
#include "model/blocks/linear.h"
#include "model/device/device_step.h"

namespace pyflow {
namespace {

class Ffn final : public Branch {
 public:
  Ffn(const BlockSpec& spec, BlockContext& c)
      : in_(register_index(spec.text("input"))),
        out_(register_index(spec.text("output"))),
        n_embd_(c.stage.n_embd),
        n_ff_(spec.integer("n_ff")),
        act_(activation_named(spec.text("activation"))),
        shares_(!c.stage.member.alone()),
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
    if (spec.has("cutoff")) cutoff_ = spec.number("cutoff");
    if (cutoff_ && (!gate_ || gate_bias_ || up_bias_))
      throw ShapeError("ffn: cutoff: expected a gate without biases");
    if (gate_bias_ && !gate_) throw ShapeError("ffn: gate_bias: there is no gate");
  }

  ScratchNeeds needs(CacheType) const override {
    return {.floats_per_row = (gate_ ? 2 : 1) * padded(n_ff_),
            .row_floats_per_row = 1,
            .act_blocks_per_row = std::max(act_blocks(n_ff_), act_blocks(n_embd_)) +
                                  (shares_ ? act_blocks(std::min(n_ff_, n_embd_)) : 0),
            .panel_cols = std::max(n_ff_, n_embd_)};
  }

  SharedRows inner(Step& s, Team& team, bool early) const override {
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
    const auto inputs = std::span(products).last(gate ? 2 : 1);
    SharedRows inner = shared_rows(s, *down_, gate ? gate : up, stride, inner_);
    // Behind those of the input, which are still read when the first ones of these are made.
    if (inner.acts) inner.acts += s.n_rows * act_blocks(n_embd_);
    if (cutoff_) {
      multiply(s, team, inputs, all_rows(s, in, s.stride));
      gather(s, team, gate, stride, inner_);
      cut_off(s, team, gate, up);
    } else {
      multiply(s, team, inputs, all_rows(s, in, s.stride), std::cref(activate),
               early ? halfway(s, inner) : Halfway{});
    }
    return inner;
  }

  float* outer(Step& s, Team& team, const SharedRows& in, bool early) const override {
    return multiply_outer(s, team, *down_, down_bias_, in, out_, early);
  }
  const Shares& outputs() const override { return outer_; }

  std::vector<int64_t> inner_rounds(const KernelTable&, Regime) const override {
    if (!cutoff_) return {};
    return {wire_nbytes(Form::F32, inner_)};  // the gates
  }
  int64_t inner_nbytes(const KernelTable& kernels, Regime regime) const override {
    return wire_nbytes(form_of(kernels, *down_, inner_, regime), inner_);
  }

  void device_needs(DeviceNeeds& needs) const override {
    if (cutoff_)
      throw UnsupportedError("gpu: gates with a cutoff run on the CPU only; use --gpu-layers 0");
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
  // Of all gates of a row, then the product of this member's columns.
  void cut_off(Step& s, Team& team, float* gate, const float* up) const {
    const int64_t stride = padded(n_ff_), first = inner_.own.begin, n = inner_.own.size();
    float* floors = s.row_temp;
    each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) floors[r] = floor_of(gate + r * stride);
    });
    if (s.own_rows) team.barrier();  // all have read the gates
    const int64_t pieces = (n + kColumns - 1) / kColumns;
    team.for_each(s.n_rows * pieces, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = i / pieces, at = i % pieces * kColumns, of = row * stride + first + at,
                      columns = std::min(kColumns, n - at);
        for (int64_t c = 0; c < columns; ++c)
          gate[of + c] = std::max(0.0f, gate[of + c] - floors[row]);
        s.kernels.gate(act_, gate + of, up + of, columns);
      }
    });
  }

  // mean + cutoff * deviation, by four chains of doubles.
  float floor_of(const float* gate) const {
    std::array<double, 4> sums{}, squares{};
    for (int64_t i = 0; i < n_ff_; ++i) sums[static_cast<size_t>(i % 4)] += gate[i];
    const double n = static_cast<double>(n_ff_),
                 mean = ((sums[0] + sums[1]) + (sums[2] + sums[3])) / n;
    for (int64_t i = 0; i < n_ff_; ++i) {
      const double d = gate[i] - mean;
      squares[static_cast<size_t>(i % 4)] += d * d;
    }
    const double variance = ((squares[0] + squares[1]) + (squares[2] + squares[3])) / n;
    return static_cast<float>(mean + *cutoff_ * std::sqrt(variance));
  }

  static constexpr int64_t kColumns = 512;

  size_t in_, out_;
  int64_t n_embd_, n_ff_;
  Activation act_;
  std::optional<float> cutoff_;
  bool shares_;
  Shares inner_, outer_;  // of members of a group
  const PackedTensor *gate_ = nullptr, *up_, *down_;
  const float *gate_bias_, *up_bias_, *down_bias_;
};

}  // namespace

std::unique_ptr<Block> make_ffn(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<Ffn>(spec, c);
}

}  // namespace pyflow
