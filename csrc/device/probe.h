// How fast a device is: what bounds the speed of generation on it.
#pragma once

#include <cstdint>
#include <functional>

#include "device/ops.h"

namespace pyflow::device {

struct Speed {
  double read_bandwidth;  // bytes per second, of fresh memory
  double launch_seconds;  // a command among many that do nothing
};

// The best of `repeats` reads of as much memory as tells, and of as many rows of launches. Calls
// poll in between. Throws DeviceError, ResourceError.
Speed measure(Ops& ops, int repeats, const std::function<void()>& poll);

}  // namespace pyflow::device
