#include "core/team_size.h"

#include <algorithm>

namespace pyflow {
namespace {

// Some time slices of the scheduler, so that a single interruption decides nothing.
constexpr int64_t kWindow = 8'000'000;
// A larger team is tried again after the least time, then later and later while that fails: at most
// about one window in two hundred goes to trials.
constexpr int64_t kLeastPatience = 50'000'000;
constexpr int64_t kMostPatience = 1'600'000'000;

// The same work on one thread less takes as long if the team lost a whole thread's time, and a bit
// less than that is worth it: fewer threads also meet faster. Of large teams a tenth may be lost to
// unequal shares.
bool starved(int size, double wall, double cpu) {
  return cpu < std::min(1.05 * (size - 1), 0.9 * size) * wall;
}

}  // namespace

void TeamSize::observe(int64_t wall_ns, int64_t cpu_ns) {
  wall_ns_ += wall_ns;
  cpu_ns_ += cpu_ns;
  since_change_ns_ += wall_ns;
  if (wall_ns_ < kWindow) return;
  if (now_ > 1 && starved(now_, static_cast<double>(wall_ns_), static_cast<double>(cpu_ns_))) {
    --now_;
    patience_ns_ = since_change_ns_ < 4 * patience_ns_ ? std::min(2 * patience_ns_, kMostPatience)
                                                       : kLeastPatience;
    since_change_ns_ = 0;
  } else if (now_ < most_ && since_change_ns_ >= patience_ns_) {
    ++now_;
    since_change_ns_ = 0;
  }
  wall_ns_ = cpu_ns_ = 0;
}

}  // namespace pyflow
