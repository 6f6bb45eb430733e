// x += h: closes a residual branch.
#include "model/blocks/blocks.h"

namespace pyflow {
namespace {

class Add final : public Block {
 public:
  Add(const BlockSpec& spec, BlockContext&)
      : in_(register_index(spec.text("in"))), out_(register_index(spec.text("out"))) {}

  ScratchNeeds needs() const override { return {}; }

  void forward(Step& s, Team& team) const override {
    team.for_each(s.n_rows, rows_per_piece(s, team), [&](int64_t begin, int64_t end) {
      s.kernels.add(s.registers[out_] + begin * s.stride, s.registers[in_] + begin * s.stride,
                    (end - begin) * s.stride);
    });
  }

 private:
  size_t in_, out_;
};

}  // namespace

std::unique_ptr<Block> make_add(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<Add>(spec, c);
}

}  // namespace pyflow
