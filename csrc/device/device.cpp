#include "device/device.h"

#include <algorithm>
#include <cstdio>

#include "device/driver.h"

namespace pyflow::device {
namespace {

struct Found {
  std::vector<Candidate> candidates;
  std::vector<std::string> missing;
};

// CUDA comes first: what it knows, OpenCL need not show again.
Found find() {
  Found found;
  for (const auto search : {find_cuda, find_opencl}) {
    std::vector<Candidate> more;
    if (std::string why = search(more); !why.empty()) found.missing.push_back(std::move(why));
    std::erase_if(more, [&](const Candidate& candidate) {
      return !candidate.info.pci.empty() &&
             std::ranges::any_of(found.candidates, [&](const Candidate& known) {
               return known.info.pci == candidate.info.pci;
             });
    });
    std::ranges::move(more, std::back_inserter(found.candidates));
  }
  return found;
}

}  // namespace

Devices find_devices() {
  Found found = find();
  Devices devices;
  for (Candidate& candidate : found.candidates) devices.found.push_back(std::move(candidate.info));
  devices.missing = std::move(found.missing);
  return devices;
}

std::shared_ptr<Device> open_device(size_t number) {
  const Found found = find();
  const size_t n = found.candidates.size();
  if (number < n) return found.candidates[number].open();
  std::string why = "device " + std::to_string(number) + ": ";
  if (n == 0)
    why += "there is none";
  else
    why += "expected 0 to " + std::to_string(n - 1);
  for (const std::string& reason : found.missing) why += "; " + reason;
  throw DeviceError(why + "; 'pyflow doctor' lists devices");
}

std::string pci_place(unsigned domain, unsigned bus, unsigned device) {
  char text[32];
  std::snprintf(text, sizeof text, "%04x:%02x:%02x", domain, bus, device);
  return text;
}

void require_slice(const DeviceInfo& info, bool whole, size_t of, size_t offset, size_t nbytes) {
  if (whole && offset <= of && nbytes <= of - offset && nbytes != 0 && offset % info.alignment == 0)
    return;
  throw DeviceError(info.name + ": slice of " + std::to_string(nbytes) + " bytes at " +
                    std::to_string(offset) + " of " + std::to_string(of) +
                    ": expected a part of a whole buffer, aligned to " +
                    std::to_string(info.alignment));
}

}  // namespace pyflow::device
