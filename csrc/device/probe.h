// What a device is found to be when it is tried: whether it is exact, and how fast, which bounds
// the speed of generation on it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "device/ops.h"

namespace pyflow::device {

// first_fault() of selftest.h. Matrix units whose products differ are no longer used: they only are
// faster. Some drivers compile kernels one by one as they begin, so it calls poll, as compile() does.
std::string find_fault(Compiled& compiled, const std::vector<DType>& formats, const Poll& poll);

struct Speed {
  double read_bandwidth;  // bytes per second, of fresh memory
  double launch_seconds;  // a command among many that do nothing
};

// The best of `repeats` reads of as much memory as tells, and of as many rows of launches. Calls
// poll in between. Throws DeviceError, ResourceError.
Speed measure(Ops& ops, int repeats, const std::function<void()>& poll);

}  // namespace pyflow::device
