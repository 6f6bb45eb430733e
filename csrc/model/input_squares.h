// How much errors in the columns of matrices count: sums of squares of what each was multiplied by.
// A context that is given one adds the rows of every step to it.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "model/stage.h"

namespace pyflow {

class InputSquares {
 public:
  struct Sums {
    std::vector<double> columns;
    int64_t n_rows = 0;  // that were added
  };

  explicit InputSquares(std::shared_ptr<const Stage> stage);

  const Stage& stage() const { return *stage_; }
  const Sums& of(const PackedTensor& w) const { return sums_.at(&w); }

  // Adds columns [begin, end) of a row of the input of `w`, one of the stage's. Several threads may
  // add different columns at once; each sum takes its rows in the order of the calls.
  void add(const PackedTensor& w, const float* x, int64_t begin, int64_t end);

 private:
  std::shared_ptr<const Stage> stage_;
  std::unordered_map<const PackedTensor*, Sums> sums_;
};

}  // namespace pyflow
