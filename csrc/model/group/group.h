// What a step of a stage that several members share needs of the others: each member computes some
// columns of a result, and gets the rest from those that have them. Nothing is added, so the bits
// are those of one member.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "link/link.h"
#include "model/cut.h"
#include "model/step.h"

namespace pyflow {

// Rows whose columns have several owners.
struct SharedRows {
  float* rows;
  int64_t stride, n_rows;
  const Shares* columns;
};

// Of one context. Rank 0 of the team makes its rounds, while the others wait at a barrier.
class Group {
 public:
  explicit Group(std::shared_ptr<Link> link);

  // Before a run. Throws LinkError if an earlier one has failed.
  void begin() {
    check();
    asked_ = stopping_ = false;
  }
  // Member 0 decides whether a run stops; its rounds tell the others, so that all of them stop
  // before the same layer. By rank 0 of the team.
  bool leads() const { return link_->number() == 0; }
  void ask_to_stop(bool stop) { asked_ = stop; }
  // Whether to stop, as of the round before. A round lies behind a barrier of the layer that it is
  // in, so all threads read the same before a layer.
  bool stopping() const { return stopping_; }
  bool failed() const { return !failure_.empty(); }
  // Throws LinkError if a round of this run, or an earlier one, has failed.
  void check() const;

  // By rank 0 of the team; do not throw: what fails is left as it is, and the run stops.
  void gather(std::span<const SharedRows> all);
  // Rows of n floats that have one owner each.
  void gather_rows(float* rows, int64_t stride, int64_t n, std::span<const int64_t> owners);

 private:
  // Makes a round of n_floats[m] of each member, which are then in floats(m).
  void exchange(std::span<const int64_t> n_floats);
  float* floats(int64_t member) { return memory_.data() + starts_[static_cast<size_t>(member)]; }
  void lay_out(std::span<const int64_t> n_floats);

  std::shared_ptr<Link> link_;
  bool asked_ = false, stopping_ = false;
  std::string failure_;
  std::vector<float> memory_;
  std::vector<int64_t> n_floats_;
  std::vector<int64_t> starts_;
  std::vector<std::span<uint8_t>> in_;
};

// After a barrier that ended the work on own columns; ends with a barrier. Without a group nothing.
inline void gather(Step& step, Team& team, std::span<const SharedRows> all) {
  if (!step.group) return;
  if (team.rank() == 0) step.group->gather(all);
  team.barrier();
}
inline void gather(Step& step, Team& team, float* rows, int64_t stride, const Shares& columns) {
  if (!step.group) return;
  const SharedRows one = {rows, stride, step.n_rows, &columns};
  gather(step, team, std::span(&one, 1));
}

}  // namespace pyflow
