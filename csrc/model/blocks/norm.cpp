// y = norm(x) * weight + bias
#include "model/blocks/block.h"
#include "model/blocks/row_norm.h"

namespace pyflow {
namespace {

class Norm final : public Block {
 public:
  Norm(const BlockSpec& spec, BlockContext& c)
      : in_(register_index(spec.text("input"))),
        out_(register_index(spec.text("output"))),
        n_(c.stage.n_embd),
        norm_(c.weights, spec.text("type"), spec.number("eps"), spec.tensor_or_none("weight"),
              spec.tensor_or_none("bias"), n_) {}

  ScratchNeeds needs(CacheType) const override { return {}; }

  void forward(Step& s, Team& team) const override {
    const float* in = s.registers[in_];
    float* out = s.row_output(out_);
    each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        norm_(s.kernels, in + r * s.stride, n_, out + r * s.stride);
    });
  }

  void device_needs(DeviceNeeds& needs) const override { norm_.device_needs(needs, n_); }
  void record(DeviceStep& s) const override {
    s.each([&](DeviceMember& m) {
      norm_.record(m, m.registers[in_], m.n_rows, n_, m.registers[out_]);
    });
  }

 private:
  size_t in_, out_;
  int64_t n_;
  RowNorm norm_;
};

}  // namespace

std::unique_ptr<Block> make_norm(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<Norm>(spec, c);
}

}  // namespace pyflow
