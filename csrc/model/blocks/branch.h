// Blocks that end with a product of what they have computed by columns: attention of its heads'
// values, a feed-forward network of its inner values. Members compute own columns of both, and
// gather in between.
#pragma once

#include <vector>

#include "model/blocks/block.h"
#include "model/blocks/linear.h"
#include "model/group/group.h"

namespace pyflow {

class Branch : public Block {
 public:
  // This member's columns of the last product's input. early: they may begin to travel.
  virtual SharedRows inner(Step&, Team&, bool early) const = 0;
  // This member's columns of the output, from all of the input. Returns where the output is.
  virtual float* outer(Step&, Team&, const SharedRows& in, bool early) const = 0;
  // Columns of the output.
  virtual const Shares& outputs() const = 0;
  // Bytes that each round of inner() brings together for a row, and of its result.
  virtual std::vector<int64_t> inner_rounds(const KernelTable&, Regime) const = 0;
  virtual int64_t inner_nbytes(const KernelTable&, Regime) const = 0;

  void forward(Step& s, Team& team) const final {
    const SharedRows in = inner(s, team, /*early=*/true);
    gather_halves(s, team, in);
    float* out = outer(s, team, in, /*early=*/true);
    gather_halves(s, team, {out, s.stride, s.n_rows, &outputs()});
  }

  // A product of own columns of the output.
  float* multiply_outer(Step& s, Team& team, const PackedTensor& weight, const float* bias,
                        const SharedRows& in, size_t out, bool early) const {
    float* y = s.product_output(out);
    multiply(s, team, Product{&weight, y + outputs().own.begin, s.stride}, bias, all_rows(s, in),
             early ? halfway(s, {y, s.stride, s.n_rows, &outputs()}) : Halfway{});
    return y;
  }

  std::vector<int64_t> rounds(const KernelTable& kernels, Regime regime) const final {
    std::vector<int64_t> all = inner_rounds(kernels, regime);
    all.push_back(inner_nbytes(kernels, regime));
    all.push_back(wire_nbytes(Form::F32, outputs()));
    return all;
  }
};

}  // namespace pyflow
