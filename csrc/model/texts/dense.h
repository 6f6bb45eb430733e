// Layers after an encoder's last one: y = norm(act(W x + b)), of a text's vector or of single rows.
// Heads for classes and for masked tokens are lists of these, and so are the projections of
// sentence-transformers.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "model/blocks/linear.h"
#include "model/blocks/row_norm.h"
#include "model/scratch.h"
#include "model/spec.h"
#include "model/weights.h"

namespace pyflow {

class Dense {
 public:
  // Throws as Weights does, and UnsupportedError for an unknown activation.
  Dense(const BlockSpec& spec, Weights& weights);

  int64_t n_in() const { return n_in_; }
  int64_t n_out() const { return n_out_; }
  ScratchNeeds needs() const {
    return {.act_blocks_per_row = act_blocks(n_in_), .panel_cols = n_in_};
  }
  // n rows; y_stride is at least padded(n_out). Called by every thread.
  void forward(Step& s, Team& team, const float* x, int64_t x_stride, int64_t n, float* y,
               int64_t y_stride) const;

 private:
  int64_t n_in_, n_out_;
  const PackedTensor* weight_;
  const float* bias_;
  std::optional<Activation> activation_;
  bool is_tanh_;
  RowNorm norm_;
};

// Layers from a file of their own, beside the model's.
class DenseFile {
 public:
  // Throws as Weights does.
  DenseFile(const std::vector<BlockSpec>& layers, TensorSource source, ThreadPool& pool,
            const KernelTable& kernels, std::optional<DType> pack_as,
            const std::function<void()>& poll);
  const std::vector<Dense>& layers() const { return layers_; }
  size_t nbytes() const { return weights_.nbytes(1); }

 private:
  Weights weights_;
  std::vector<Dense> layers_;
};

}  // namespace pyflow
