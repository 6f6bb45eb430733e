// Low-rank adapters (LoRA, Hu et al. 2021): beside a matrix W of the stage there are A and B of few
// rows, and a product becomes W x + s B (A x). A sequence has a set of them, so one step serves
// sequences with different sets. Rows stay pure: a row depends on itself and its own set.
#pragma once

#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/stage.h"
#include "model/weights.h"
#include "quant/packed_tensor.h"

namespace pyflow {

// The tensors of an adapter beside one tensor of its model.
struct LowRankSpec {
  TensorRef a, b;  // rank x columns, rows x rank, as of the whole tensor
  int64_t rank;
  double scale;
};

class Adapter {
 public:
  // specs: by the names of the stage's tensors. Throws ShapeError for shapes that do not fit,
  // UnsupportedError for tensors that no product of a step reads as it is, such as experts. A
  // stage of some layers, or a member of one, takes what stands beside its own tensors and rows.
  Adapter(std::shared_ptr<const Stage> stage, TensorSource source,
          const std::map<std::string, LowRankSpec>& specs, const std::function<void()>& poll);

  struct LowRank {
    const PackedTensor *a, *b;
    float scale;
  };
  const std::unordered_map<const PackedTensor*, LowRank>& matrices() const { return matrices_; }
  const Stage& stage() const { return *stage_; }

 private:
  std::shared_ptr<const Stage> stage_;
  Weights weights_;
  std::unordered_map<const PackedTensor*, LowRank> matrices_;
};

// Adapters that apply together, in this order, each with a factor.
class AdapterSet {
 public:
  // Throws ShapeError if they are of several stages.
  explicit AdapterSet(std::vector<std::pair<std::shared_ptr<const Adapter>, float>> adapters);

  struct Term {
    const PackedTensor *a, *b;
    float scale;
    int64_t offset;  // of A x among the floats of a row
  };
  // Beside a matrix; empty: none.
  std::span<const Term> terms(const PackedTensor* weight) const {
    const auto found = terms_.find(weight);
    return found == terms_.end() ? std::span<const Term>() : found->second;
  }
  const Stage* stage() const { return stage_; }
  // That a row needs for the A x of one matrix.
  int64_t floats() const { return floats_; }

 private:
  std::vector<std::shared_ptr<const Adapter>> adapters_;
  std::unordered_map<const PackedTensor*, std::vector<Term>> terms_;
  const Stage* stage_ = nullptr;
  int64_t floats_ = 0;
};

}  // namespace pyflow
