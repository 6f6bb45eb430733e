// How much errors in the columns of matrices count: sums of squares of what each was multiplied by,
// and where asked for, of the products of its columns. A context that is given one adds the rows of
// every step to it; where moments are wanted, one context at a time, from an empty cache on, whose
// cells stay in place.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "core/buffer.h"
#include "encode/feedback.h"
#include "model/stage.h"

namespace pyflow {

class InputSquares {
 public:
  struct Sums {
    std::vector<double> columns;
    int64_t n_rows = 0;  // that were added
  };

  // Of matrices that have one input, for the first of them; not for experts.
  struct Moments {
    Triangles shape;
    std::vector<const PackedTensor*> matrices;
    Buffer sums;    // shape.size() floats; none where the memory could not be had
    Buffer recent;  // the same of the last n_recent rows, which sums lacks
    int64_t n_recent = 0;
  };

  InputSquares(std::shared_ptr<const Stage> stage, bool with_moments);

  const Stage& stage() const { return *stage_; }
  // What a context holds as long as it observes; throws ShapeError where moments are wanted and
  // another one does.
  std::shared_ptr<const void> take();
  bool with_moments() const { return with_moments_; }
  const Sums& of(const PackedTensor& w) const { return sums_.at(&w); }
  // With their recent rows in the sums. Not while a context observes a step.
  const std::vector<Moments>& moments();

  // Adds columns [begin, end) of a row of the input of `w`, one of the stage's. Several threads may
  // add different columns at once; each sum takes its rows in the order of the calls.
  void add(const PackedTensor& w, const float* x, int64_t begin, int64_t end);

  // The second moments of what matrices are multiplied by, if they are wanted: one thread makes
  // room before the others ask for their number, -1 where there are none. Then threads may add
  // different steps of 16 columns.
  void prepare_moments(size_t n_matrices,
                       const std::function<const PackedTensor*(size_t)>& at) noexcept;
  int64_t moments_of(const PackedTensor& first) const;
  int64_t moment_steps(int64_t number) const;
  void add_moments(int64_t number, const float* x, int64_t x_stride, int64_t n_rows, int64_t step);
  // One thread, when all steps have been added.
  void end_moments(int64_t number, int64_t n_rows);

  // Memory in which attention mixes inputs (blocks/attention.cpp), for `v`, whose moments there are
  // room for already: some of its own, which lasts, and some that all layers share. Where it cannot
  // be had, `v` has no moments from then on.
  void prepare_mixing(const PackedTensor& v, int64_t own_floats, int64_t shared_floats) noexcept;
  float* own_mixing(const PackedTensor& v) const { return own_mixing_.at(&v).as<float>(); }
  float* shared_mixing() const { return shared_mixing_.as<float>(); }

 private:
  std::shared_ptr<const Stage> stage_;
  std::weak_ptr<const void> taken_;
  std::unordered_map<const PackedTensor*, Sums> sums_;
  bool with_moments_;
  std::vector<Moments> moments_;
  std::unordered_map<const PackedTensor*, int64_t> moments_at_;
  std::unordered_map<const PackedTensor*, Buffer> own_mixing_;
  Buffer shared_mixing_;
};

}  // namespace pyflow
