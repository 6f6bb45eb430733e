// x += scale * h: closes a residual branch.
#include <algorithm>

#include "model/blocks/block.h"
#include "model/device/device_step.h"

namespace pyflow {
namespace {

class Add final : public Block {
 public:
  Add(const BlockSpec& spec, BlockContext& c)
      : in_(register_index(spec.text("input"))),
        out_(register_index(spec.text("output"))),
        n_(c.stage.n_embd),
        scale_(spec.number("scale")) {}

  bool adds() const override { return true; }

  ScratchNeeds needs(CacheType) const override { return {}; }

  void forward(Step& s, Team& team) const override {
    const float* old = s.registers[out_];
    const float* in = s.registers[in_];
    float* out = s.row_output(out_);
    each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
      const int64_t at = begin * s.stride, n = (end - begin) * s.stride;
      if (old != out) std::copy_n(old + at, n, out + at);
      if (scale_ == 1)
        s.kernels.add(out + at, in + at, n);
      else
        s.kernels.add_scaled(out + at, in + at, scale_, n);
    });
  }

  void record(DeviceStep& s) const override {
    s.each([&](DeviceMember& m) {
      if (scale_ == 1)
        m.ops.add(m.queue, m.registers[out_], m.registers[in_], m.n_rows, n_);
      else
        m.ops.add_scaled(m.queue, m.registers[out_], m.registers[in_], scale_, m.n_rows, n_);
    });
  }

 private:
  size_t in_, out_;
  int64_t n_;
  float scale_;
};

}  // namespace

std::unique_ptr<Block> make_add(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<Add>(spec, c);
}

}  // namespace pyflow
