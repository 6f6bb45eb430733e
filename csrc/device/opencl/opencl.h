// Devices through OpenCL, of any driver that is installed.
#pragma once

#include "device/device.h"

namespace pyflow::device {

// Those that compile programs, each with a function that opens it.
struct Candidate {
  DeviceInfo info;
  std::function<std::shared_ptr<Device>()> open;
};

// Adds them in the order of platforms and devices. Returns why there are none, or nothing.
std::string find_opencl(std::vector<Candidate>& found);

}  // namespace pyflow::device
