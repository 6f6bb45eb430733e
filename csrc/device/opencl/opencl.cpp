// Devices through OpenCL, of any driver that is installed.
#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>

#include "device/opencl/objects.h"

namespace pyflow::device {
namespace {

using namespace cl;

// Text of a platform or device: get(size, to, size of all).
template <class Get>
std::string text_of(Get get) {
  size_t size = 0;
  if (get(size_t{0}, nullptr, &size) != kSuccess || size == 0) return "";
  std::string text(size, '\0');
  if (get(size, text.data(), nullptr) != kSuccess) return "";
  while (!text.empty() && (text.back() == '\0' || text.back() == ' ')) text.pop_back();
  return text;
}

std::string platform_text(Platform platform, Uint what) {
  return text_of([&](size_t size, void* to, size_t* all) {
    return library().GetPlatformInfo(platform, what, size, to, all);
  });
}
std::string device_text(DeviceId id, Uint what) {
  return text_of([&](size_t size, void* to, size_t* all) {
    return library().GetDeviceInfo(id, what, size, to, all);
  });
}

template <class T>
T number(DeviceId id, Uint what) {
  T value{};
  return library().GetDeviceInfo(id, what, sizeof value, &value, nullptr) == kSuccess ? value : T{};
}

// On the bus, as NVIDIA tells it.
std::string pci_of(DeviceId id) {
  return pci_place(number<Uint>(id, kDevicePciDomainNvidia), number<Uint>(id, kDevicePciBusNvidia),
                   number<Uint>(id, kDevicePciSlotNvidia));
}

bool has_extension(const std::string& all, const std::string& name) {
  return (" " + all + " ").find(" " + name + " ") != std::string::npos;
}

DeviceInfo describe(Platform platform, DeviceId id) {
  const Bits type = number<Bits>(id, kDeviceType), floats = number<Bits>(id, kDeviceFloats);
  DeviceInfo info;
  info.api = "OpenCL";
  info.name = device_text(id, kDeviceName);
  info.vendor = device_text(id, kDeviceVendor);
  info.driver = platform_text(platform, kPlatformVersion) + "; " + device_text(id, kDeviceVersion) +
                "; " + device_text(id, kDriverVersion);
  info.kind = type & kTypeGpu ? Kind::Gpu : type & kTypeCpu ? Kind::Cpu : Kind::Other;
  info.memory = number<Ulong>(id, kDeviceMemory);
  info.largest_buffer = number<Ulong>(id, kDeviceLargestBuffer);
  info.local_memory = number<Ulong>(id, kDeviceLocalMemory);
  info.compute_units = number<Uint>(id, kDeviceUnits);
  info.most_items = static_cast<uint32_t>(number<size_t>(id, kDeviceMostItems));
  info.alignment = std::max<uint32_t>(64, number<Uint>(id, kDeviceAlignment) / 8);
  info.unified = number<Uint>(id, kDeviceUnified) != 0;
  const std::string extensions = device_text(id, kDeviceExtensions);
  info.has_f64 = has_extension(extensions, "cl_khr_fp64");
  info.integer_dots = has_extension(extensions, "cl_khr_integer_dot_product") &&
                      device_text(id, kDeviceLanguage) >= "OpenCL C 3";
  if (has_extension(extensions, "cl_nv_device_attribute_query")) info.pci = pci_of(id);
  info.exact_division = (floats & kFloatsExactDivision) != 0;
  info.subnormals = (floats & kFloatsSubnormals) != 0;
  return info;
}

bool usable(DeviceId id) {
  return number<Uint>(id, kDeviceAvailable) && number<Uint>(id, kDeviceCompiler) &&
         number<Uint>(id, kDeviceLittleEndian);
}

// In containers the driver is often there, but the file that names it to the loader is not.
std::string without_drivers() {
  const char* nvidia = "libnvidia-opencl.so.1";
  const char* named = std::getenv("OCL_ICD_VENDORS");
  const std::string vendors =
      named ? "OCL_ICD_VENDORS=" + std::string(named) : std::string("/etc/OpenCL/vendors");
  std::string why =
      "OpenCL: the loader finds no driver: no .icd file that works in " + vendors + "; ";
  if (void* handle = dlopen(nvidia, RTLD_LAZY | RTLD_LOCAL)) {
    dlclose(handle);
    return why + nvidia + " is here: set OCL_ICD_VENDORS=" + nvidia;
  }
  return why + "install the OpenCL driver of your GPU";
}

}  // namespace

std::string find_opencl(std::vector<Candidate>& found) {
  const Library& api = library();
  if (!api.fault.empty()) return "OpenCL: " + api.fault;
  Uint n = 0;
  const Int code = api.GetPlatformIDs(0, nullptr, &n);
  if (code == kNoPlatform || (code == kSuccess && n == 0)) return without_drivers();
  std::vector<Platform> platforms(n);
  if (code != kSuccess || api.GetPlatformIDs(n, platforms.data(), nullptr) != kSuccess)
    return "OpenCL: the loader lists no drivers: " + error_name(code);
  const size_t before = found.size();
  std::string names;
  size_t unusable = 0;
  for (Platform platform : platforms) {
    names += (names.empty() ? "" : ", ") + platform_text(platform, kPlatformName);
    Uint n_devices = 0;
    if (api.GetDeviceIDs(platform, kTypeAll, 0, nullptr, &n_devices) != kSuccess) continue;
    std::vector<DeviceId> ids(n_devices);
    if (api.GetDeviceIDs(platform, kTypeAll, n_devices, ids.data(), nullptr) != kSuccess) continue;
    for (DeviceId id : ids) {
      unusable += !usable(id);
      if (!usable(id)) continue;
      const DeviceInfo info = describe(platform, id);
      found.push_back({info, [info, id] { return cl::open(info, id); }});
    }
  }
  if (found.size() > before) return "";
  if (unusable)
    return "OpenCL: " + std::to_string(unusable) + " devices of " + names +
           " are not available or have no compiler";
  return "OpenCL: no device of these drivers: " + names +
         "; see what clinfo says of them (PoCL needs a folder that it can write to: "
         "POCL_CACHE_DIR)";
}

}  // namespace pyflow::device
