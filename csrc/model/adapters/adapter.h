// Low-rank adapters (LoRA, Hu et al. 2021): beside a matrix W of the stage there are A and B of few
// rows, and a product becomes W x + s B (A x); or, with magnitudes m (DoRA, Liu et al. 2024),
// m / |W + s B A| * (W x + s B (A x)) with norms of rows. A sequence has a set of them, so one step
// serves sequences with different sets. Rows stay pure: a row depends on itself and its own set.
// Of several adapters each changes what those before it made, as in PEFT.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "model/adapters/pieces.h"
#include "model/adapters/row_norms.h"
#include "model/adapters/sides.h"
#include "model/stage.h"
#include "model/weights.h"
#include "quant/packed_tensor.h"

namespace pyflow {

class Adapter {
 public:
  // By the names of the stage's tensors, of which one may have several.
  using Specs = std::vector<std::pair<std::string, LowRankSpec>>;
  // Throws ShapeError for shapes that do not fit, FormatError for values that are not finite,
  // UnsupportedError for tensors that no product of a step reads as it is. A stage of some layers,
  // or a member of one, takes what stands beside its own tensors and rows. Beside a stage that was
  // not loaded it is only planned.
  Adapter(std::shared_ptr<const Stage> stage, TensorSource source, const Specs& specs,
          const std::function<void()>& poll);

  struct LowRank {
    const PackedTensor *a, *b;
    float scale;
    std::string name;                  // of a tensor, for messages
    const float* magnitude = nullptr;  // one for each norm; null: none
    bool is_flipped = false;           // norms are those of columns
    RowNorms norms = {};
  };
  const std::unordered_map<const PackedTensor*, LowRank>& matrices() const { return matrices_; }
  // Beside rows of the embedding, of which `a` has one for each; null: none.
  const LowRank* lookup() const { return lookup_.a ? &lookup_ : nullptr; }
  const Stage& stage() const { return *stage_; }
  size_t nbytes() const;
  // Factors of outputs at a factor of the adapter. Throws FormatError for a row of zeros.
  std::vector<float> output_factors(const LowRank& low, float factor) const;

 private:
  void stand_beside(const TensorRef& ref, const PackedTensor& w, const LowRankSpec& spec);
  void stand_beside_rows(const TensorRef& ref, const PackedTensor& w, const LowRankSpec& spec);
  void check_values(const std::function<void()>& poll);
  void measure(const std::function<void()>& poll);

  std::shared_ptr<const Stage> stage_;
  PieceTensors tensors_;
  Weights weights_;
  std::unordered_map<const PackedTensor*, LowRank> matrices_;
  LowRank lookup_ = {};
};

// Adapters that apply together, in this order, each with a factor.
class AdapterSet {
 public:
  // Throws ShapeError if they are of several stages, FormatError as output_factors() does.
  explicit AdapterSet(std::vector<std::pair<std::shared_ptr<const Adapter>, float>> adapters);

  struct Term {
    const PackedTensor *a, *b;
    float scale;
    int64_t offset;                     // of A x among the floats of a row
    const float* factors = nullptr;     // of outputs so far; null: 1
    const float* in_factors = nullptr;  // the same of inputs, where the matrix is transposed
  };
  // Beside a matrix; empty: none.
  std::span<const Term> terms(const PackedTensor* weight) const {
    const auto found = terms_.find(weight);
    return found == terms_.end() ? std::span<const Term>() : found->second;
  }
  // Beside rows of the embedding.
  std::span<const Term> lookups() const { return lookups_; }
  const Stage* stage() const { return stage_; }
  // That a row needs for the A x of all products that are computed side by side.
  int64_t row_floats() const { return row_floats_; }

 private:
  Term term(const Adapter& adapter, const Adapter::LowRank& low, float factor);

  std::vector<std::shared_ptr<const Adapter>> adapters_;
  std::unordered_map<const PackedTensor*, std::vector<Term>> terms_;
  std::vector<Term> lookups_;
  std::deque<std::vector<float>> factors_;
  const Stage* stage_ = nullptr;
  int64_t row_floats_ = 0;
};

}  // namespace pyflow
