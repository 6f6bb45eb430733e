#include "device/device.h"

#include "device/opencl/opencl.h"

namespace pyflow::device {
namespace {

struct Found {
  std::vector<Candidate> candidates;
  std::vector<std::string> missing;
};

Found find() {
  Found found;
  if (std::string why = find_opencl(found.candidates); !why.empty())
    found.missing.push_back(std::move(why));
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

}  // namespace pyflow::device
