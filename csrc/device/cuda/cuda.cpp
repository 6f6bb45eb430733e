// NVIDIA's GPUs through CUDA.
#include <algorithm>

#include "device/cuda/objects.h"

namespace pyflow::device {
namespace {

using namespace cuda;

int number(DeviceId id, int what) {
  int value = 0;
  return library().DeviceGetAttribute(&value, what, id) == kSuccess ? value : 0;
}

std::string name_of(DeviceId id) {
  char name[256] = {};
  library().DeviceGetName(name, sizeof name - 1, id);
  return name;
}

std::string version(int major, int minor) {
  return std::to_string(major) + "." + std::to_string(minor);
}

// Those of 7.0 and 7.2 multiply f16 alone, or in other shapes.
constexpr int kOldestWithMatrixUnits = 75;

DeviceInfo describe(DeviceId id, const Compiler& compiler) {
  size_t memory = 0;
  library().DeviceTotalMem(&memory, id);
  const int driver = library().version;
  const auto unsigned_number = [&](int what) { return static_cast<uint32_t>(number(id, what)); };
  DeviceInfo info;
  info.api = "CUDA";
  info.name = name_of(id);
  info.vendor = "NVIDIA";
  info.driver = "compute capability " + version(number(id, kMajor), number(id, kMinor)) +
                "; NVRTC " + version(compiler.major, compiler.minor) + "; CUDA " +
                version(driver / 1000, driver % 1000 / 10);
  info.pci =
      pci_place(unsigned_number(kPciDomain), unsigned_number(kPciBus), unsigned_number(kPciDevice));
  info.kind = Kind::Gpu;
  info.memory = info.largest_buffer = memory;
  info.local_memory = unsigned_number(kLocalMemory);
  info.compute_units = unsigned_number(kUnits);
  info.most_items = unsigned_number(kMostItems);
  info.alignment = 256;
  info.unified = number(id, kUnified) != 0;
  info.matrix_units = 10 * number(id, kMajor) + number(id, kMinor) >= kOldestWithMatrixUnits;
  info.has_f64 = info.exact_division = info.subnormals = true;
  return info;
}

// Products of bytes came with it (prelude_cuda.dev).
constexpr int kOldestCapability = 61;

std::string without_compiler(const std::string& name, int capability) {
  const int major = library().version / 1000;
  const std::string of = name + ", compute capability " + version(capability / 10, capability % 10);
  if (capability < kOldestCapability || major < 12)
    return of + " with a driver of CUDA " + std::to_string(major) +
           ": expected 6.1 and 12 or newer";
  // Version 13 has left out cards that are older than that.
  const char* wheel =
      major == 12 || capability < 75 ? "nvidia-cuda-nvrtc-cu12" : "nvidia-cuda-nvrtc";
  return of + ": no NVRTC compiles for it; 'pip install " + wheel + "'";
}

}  // namespace

std::string find_cuda(std::vector<Candidate>& found) {
  const Library& api = library();
  if (!api.fault.empty()) return "CUDA: " + api.fault;
  int n = 0;
  if (const Result code = api.DeviceGetCount(&n); code != kSuccess)
    return "CUDA: the driver lists no devices: " + error_name(code);
  std::string missing;
  for (int i = 0; i < n; ++i) {
    DeviceId id = 0;
    if (api.DeviceGet(&id, i) != kSuccess) continue;
    const int capability = 10 * number(id, kMajor) + number(id, kMinor);
    const Compiler* compiler =
        capability < kOldestCapability ? nullptr : compiler_for(capability, api.version);
    if (!compiler) {
      missing += (missing.empty() ? "" : "; ") + without_compiler(name_of(id), capability);
      continue;
    }
    const DeviceInfo info = describe(id, *compiler);
    found.push_back({info, [info, id, capability, compiler] {
                       return cuda::open(info, id, capability, *compiler);
                     }});
  }
  if (n == 0) missing = "the driver lists no devices";
  return missing.empty() ? "" : "CUDA: " + missing;
}

}  // namespace pyflow::device
