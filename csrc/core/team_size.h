// How many threads a team should have: fewer than there are while some of them do not get a core.
//
// Work that threads share ends when the last one has arrived. A thread that must share its core
// with another process holds the others up for whole time slices, and then a smaller team is
// faster.
#pragma once

#include <cstdint>

namespace pyflow {

class TeamSize {
 public:
  explicit TeamSize(int most) : most_(most), now_(most) {}

  int now() const { return now_; }

  // A team of now() threads took so long, and ran on a core for so long in sum.
  void observe(int64_t wall_ns, int64_t cpu_ns);

 private:
  int most_;
  int now_;
  // Since the last decision.
  int64_t wall_ns_ = 0;
  int64_t cpu_ns_ = 0;
  int64_t since_change_ns_ = 0;
  int64_t patience_ns_ = 0;  // how long to stay below `most_`
};

}  // namespace pyflow
