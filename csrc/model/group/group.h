// What a step of a stage that several members share needs of the others: each member computes some
// columns of a result, and gets the rest from those that have them. Nothing is added, so the bits
// are those of one member.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "link/link.h"
#include "model/group/rows.h"
#include "model/step.h"

namespace pyflow {

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

  // Whether columns had better be sent in halves, and begins the next round, of these rows in halves,
  // by the first ones; by rank 0 of the team.
  bool sends_early() const { return link_->sends_early(); }
  void begin(const KernelTable& kernels, const SharedRows& rows);
  // One round for all of these, by the team; ends with a barrier. Does not throw: what fails is left
  // as it is, and the run stops.
  void gather(const Step& step, Team& team, std::span<const SharedRows> all);
  // By rank 0 of the team: rows of n floats that have one owner each.
  void gather_rows(float* rows, int64_t stride, int64_t n, std::span<const int64_t> owners);

  // A round of as many bytes of each member, which they write to piece(number()) before, and find in
  // piece(member) after it. False: it has failed.
  void lay_out_pieces(size_t nbytes) {
    std::ranges::fill(nbytes_, nbytes);
    lay_out();
  }
  bool exchange_pieces() {
    if (!failed()) exchange();
    return !failed();
  }
  uint8_t* piece(size_t member) { return at(member); }
  size_t number() const { return static_cast<size_t>(link_->number()); }
  // What rank 0 found in the pieces, for the others.
  void set_enough(bool enough) { enough_ = enough; }
  bool enough() const { return enough_; }

 private:
  // Room for nbytes_[m] of each member, from at(m) on.
  void lay_out();
  void lay_out(std::span<const SharedRows> all);
  uint8_t* at(size_t member) { return memory_.data() + starts_[member]; }
  // Makes the round.
  void exchange();
  // Row `row` of all rows that are gathered, one after the other: take(rows, row, where it lies
  // among what a member sends).
  template <class Take>
  void with_row(std::span<const SharedRows> all, int64_t row, size_t member, Take&& take);
  void pack(const KernelTable& kernels, std::span<const SharedRows> all, int64_t begin,
            int64_t end);
  void unpack(std::span<const SharedRows> all, int64_t begin, int64_t end);

  std::shared_ptr<Link> link_;
  bool asked_ = false, stopping_ = false, enough_ = false, begun_ = false;
  std::string failure_;
  std::vector<uint8_t> memory_;
  std::vector<size_t> nbytes_, starts_;  // by member
  std::vector<std::span<uint8_t>> in_;
};

// After a barrier that ended the work on own columns; ends with a barrier. Without a group nothing.
inline void gather(Step& step, Team& team, std::span<const SharedRows> all) {
  if (step.group) step.group->gather(step, team, all);
}
inline void gather(Step& step, Team& team, const SharedRows& one) {
  gather(step, team, std::span(&one, 1));
}
inline void gather(Step& step, Team& team, float* rows, int64_t stride, const Shares& columns) {
  gather(step, team, SharedRows{rows, stride, step.n_rows, &columns});
}
// In halves, of which the first one may be on its way: that of what halfway() was asked for.
inline void gather_halves(Step& step, Team& team, const SharedRows& rows) {
  gather(step, team, std::array{rows.only(Half::First), rows.only(Half::Second)});
}

// For a product whose output is gathered in halves: after its first half `then` is called by rank 0 of
// the team, while the others go on.
struct Halfway {
  int64_t n_columns = 0;  // of the first half; 0: nothing to do
  std::function<void()> then = nullptr;
};
inline Halfway halfway(const Step& step, const SharedRows& rows) {
  if (!step.group || !step.group->sends_early()) return {};
  const int64_t n = half_of(rows.columns->own, Half::First).size();
  if (n == rows.columns->own.size()) return {};
  return {n, [&step, rows] { step.group->begin(step.kernels, rows); }};
}

}  // namespace pyflow
