#include "device/cuda/api.h"

#include <dlfcn.h>

#include "device/driver.h"

namespace pyflow::device::cuda {
namespace {

Library open_library() {
  Library api;
  void* handle = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    api.fault = "libcuda.so.1 is not installed; it comes with the driver of NVIDIA's GPUs";
    return api;
  }
  const auto find = [&](const char* symbol) {
    void* address = dlsym(handle, symbol);
    if (!address && api.fault.empty())
      api.fault = "libcuda.so.1 has no " + std::string(symbol) + "; install a newer driver";
    return address;
  };
#define PYFLOW_CUDA_FIND(name, symbol, parameters) \
  api.name = reinterpret_cast<decltype(api.name)>(find(symbol));
  PYFLOW_CUDA_FUNCTIONS(PYFLOW_CUDA_FIND)
#undef PYFLOW_CUDA_FIND
  if (!api.fault.empty()) return api;
  if (const Result code = api.Init(0); code != kSuccess) {
    const char* name = nullptr;
    api.GetErrorName(code, &name);
    api.fault = "the driver does not start: " + std::string(name ? name : "unknown error") +
                "; 'nvidia-smi' tells more";
  } else {
    api.DriverGetVersion(&api.version);
  }
  return api;
}

}  // namespace

const Library& library() {
  return library_of_process(
      open_library, +[] { return Library(); }, "CUDA");
}

std::string error_name(Result code) {
  const char* name = nullptr;
  const Library& api = library();
  if (api.GetErrorName) api.GetErrorName(code, &name);
  return (name ? name : "error") + (" (" + std::to_string(code) + ")");
}

}  // namespace pyflow::device::cuda
