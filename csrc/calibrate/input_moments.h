// How much errors in the columns of matrices count: sums of squares of their inputs and, if asked
// for, second moments, the sums of products of columns. A context that observes with it adds the
// rows of every step. With second moments only one context at a time may, from an empty cache on,
// and cells stay in place.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "calibrate/mixing.h"
#include "core/buffer.h"
#include "encode/feedback.h"
#include "model/observer.h"
#include "model/stage.h"

namespace pyflow {

class InputMoments final : public Observer {
 public:
  struct Sums {
    std::vector<double> columns;
    int64_t n_rows = 0;  // that were added
  };

  // Of matrices that share an input; not of experts.
  struct Moments {
    Triangles shape;
    std::vector<const PackedTensor*> matrices;
    Buffer sums;    // shape.size() floats; empty if the memory was refused
    Buffer recent;  // of the last n_recent rows, not yet in sums
    int64_t n_recent = 0;
  };

  InputMoments(std::shared_ptr<const Stage> stage, bool with_moments);

  const Stage& stage() const { return *stage_; }
  const Sums& of(const PackedTensor& w) const { return sums_.at(&w); }
  // All sums are complete. Not while a context observes a step.
  const std::vector<Moments>& moments();

  std::shared_ptr<const void> attach(const Stage&, const KvCache&) override;
  void input(Team&, const MatrixInput&) override;
  void attention(Team&, const AttentionInput&) override;

 private:
  using Matrices = std::span<const PackedTensor* const>;

  // Whether the inputs of these values are observed as attention mixes them.
  bool mixes(const PackedTensor& w) const;
  void add(Team&, Matrices, const MatrixInput&);
  void add_squares(Team&, Matrices, const MatrixInput&);
  void add_moments(Team&, const MatrixInput&, Moments&);
  // Steps of 16 columns may be added by different threads.
  void add_step(const MatrixInput&, const Moments&, int64_t step);
  // One thread: makes room for the moments of matrices, unless they have it.
  void reserve(Matrices) noexcept;
  // Null if there are none.
  Moments* moments_of(const PackedTensor& first);

  std::shared_ptr<const Stage> stage_;
  std::weak_ptr<const void> lease_;
  std::unordered_map<const PackedTensor*, Sums> sums_;
  bool with_moments_;
  std::vector<Moments> moments_;
  std::unordered_map<const PackedTensor*, size_t> moments_at_;  // by the first matrix
  Mixing mixing_;
};

}  // namespace pyflow
