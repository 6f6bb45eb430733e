// Rows of a model's head, for speculators that guess with it: the logits of some tokens, to the
// same weights.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/buffer.h"
#include "model/stage.h"
#include "quant/packed_tensor.h"

namespace pyflow {

class BaseHead {
 public:
  // The rows of `tokens` of the stage's head, ascending; none are all rows, which are not copied.
  // weight: of that head in the host's memory, which outlives this. Throws ShapeError for other
  // tokens, UnsupportedError if it is null, ResourceError.
  BaseHead(std::shared_ptr<const Stage> stage, const PackedTensor* weight,
           const std::vector<int32_t>& tokens);

  const PackedTensor& weight() const { return rows_.rows() ? rows_ : *weight_; }
  size_t nbytes() const { return arena_.size() + bias_.size() * sizeof(float); }
  // Makes logits of products: columns [column, column + n) of one row.
  void finish(float* logits, int64_t column, int64_t n) const;

 private:
  std::shared_ptr<const Stage> stage_;
  const PackedTensor* weight_;
  PackedTensor rows_;
  Buffer arena_;
  std::vector<float> bias_, factors_;
};

}  // namespace pyflow
