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
  // The rows of `tokens`, ascending; none are all rows, which are not copied. Throws ShapeError for
  // other tokens, UnsupportedError if the stage has no head in the host's memory, ResourceError.
  BaseHead(std::shared_ptr<const Stage> stage, const std::vector<int32_t>& tokens);

  const PackedTensor& weight() const { return rows_.rows() ? rows_ : *stage_->head().weight; }
  size_t nbytes() const { return arena_.size() + bias_.size() * sizeof(float); }
  // Makes logits of products: columns [column, column + n) of one row.
  void finish(float* logits, int64_t column, int64_t n) const;

 private:
  std::shared_ptr<const Stage> stage_;
  PackedTensor rows_;
  Buffer arena_;
  std::vector<float> bias_;
};

}  // namespace pyflow
