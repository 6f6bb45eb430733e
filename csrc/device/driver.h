// What the drivers behind the seam have in common.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"

namespace pyflow::device {

// A device, and a function that opens it.
struct Candidate {
  DeviceInfo info;
  std::function<std::shared_ptr<Device>()> open;
};

// Those that compile programs, added in the order of platforms and devices. Both return why there
// are none, or nothing.
std::string find_cuda(std::vector<Candidate>& found);
std::string find_opencl(std::vector<Candidate>& found);

// A driver's library, opened once and never closed, since objects may be released at exit. In a
// process that fork() made after that it is a lost one with a fault: drivers do not survive it.
template <class Library>
const Library& library_of_process(Library (*open)(), Library (*make_lost)(), const char* driver) {
  static const Library* api = new Library(open());
  static const pid_t owner = getpid();
  static const Library* lost = [&] {
    auto* none = new Library(make_lost());
    none->fault = std::string(driver) +
                  " does not survive fork(): start a new process, or use it there first";
    return none;
  }();
  return getpid() == owner ? *api : *lost;
}

// How long a wait may go on before it polls.
inline constexpr auto kPollPeriod = std::chrono::milliseconds(50);

// DeviceInfo::pci.
std::string pci_place(unsigned domain, unsigned bus, unsigned device);

// Throws DeviceError unless it is a part of a whole buffer of so many bytes, and aligned.
void require_slice(const DeviceInfo& info, bool whole, size_t of, size_t offset, size_t nbytes);

}  // namespace pyflow::device
