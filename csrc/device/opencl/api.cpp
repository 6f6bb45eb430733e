#include "device/opencl/api.h"

#include <dlfcn.h>

#include <type_traits>

#include "device/driver.h"

namespace pyflow::device::cl {
namespace {

constexpr Int kLost = -30'000;

Library open_library() {
  Library api;
  void* handle = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    api.fault =
        "libOpenCL.so.1 is not installed; install the loader (Debian: ocl-icd-libopencl1) and "
        "the driver of your GPU";
    return api;
  }
  const auto find = [&](const char* name) {
    void* address = dlsym(handle, name);
    if (!address && api.fault.empty())
      api.fault = "libOpenCL.so.1 has no " + std::string(name) +
                  ": expected OpenCL 1.2; install a newer loader (Debian: ocl-icd-libopencl1)";
    return address;
  };
#define PYFLOW_OPENCL_FIND(result, name, parameters) \
  api.name = reinterpret_cast<decltype(api.name)>(find("cl" #name));
  PYFLOW_OPENCL_FUNCTIONS(PYFLOW_OPENCL_FIND)
#undef PYFLOW_OPENCL_FIND
  return api;
}

// What a process that fork() made calls in place of a function.
template <class Function>
struct Lost;
template <class Result, class... Of>
struct Lost<Result (*)(Of...)> {
  static Result call(Of... of) {
    const auto told = [](auto argument) {
      if constexpr (std::is_same_v<decltype(argument), Int*>)
        if (argument) *argument = kLost;
    };
    (told(of), ...);
    if constexpr (std::is_same_v<Result, Int>)
      return kLost;
    else
      return nullptr;
  }
};

Library lost_library() {
  Library api;
#define PYFLOW_OPENCL_LOST(result, name, parameters) api.name = Lost<decltype(api.name)>::call;
  PYFLOW_OPENCL_FUNCTIONS(PYFLOW_OPENCL_LOST)
#undef PYFLOW_OPENCL_LOST
  return api;
}

struct Named {
  Int code;
  const char* name;
};
// Those that a driver may answer to our calls.
constexpr Named kErrors[] = {
    {-1, "DEVICE_NOT_FOUND"},
    {-2, "DEVICE_NOT_AVAILABLE"},
    {-3, "COMPILER_NOT_AVAILABLE"},
    {-4, "MEM_OBJECT_ALLOCATION_FAILURE"},
    {-5, "OUT_OF_RESOURCES"},
    {-6, "OUT_OF_HOST_MEMORY"},
    {-11, "BUILD_PROGRAM_FAILURE"},
    {-12, "MAP_FAILURE"},
    {-13, "MISALIGNED_SUB_BUFFER_OFFSET"},
    {-14, "EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST"},
    {-15, "COMPILE_PROGRAM_FAILURE"},
    {-30, "INVALID_VALUE"},
    {-33, "INVALID_DEVICE"},
    {-34, "INVALID_CONTEXT"},
    {-36, "INVALID_COMMAND_QUEUE"},
    {-38, "INVALID_MEM_OBJECT"},
    {-42, "INVALID_BINARY"},
    {-43, "INVALID_BUILD_OPTIONS"},
    {-44, "INVALID_PROGRAM"},
    {-45, "INVALID_PROGRAM_EXECUTABLE"},
    {-46, "INVALID_KERNEL_NAME"},
    {-48, "INVALID_KERNEL"},
    {-49, "INVALID_ARG_INDEX"},
    {-50, "INVALID_ARG_VALUE"},
    {-51, "INVALID_ARG_SIZE"},
    {-52, "INVALID_KERNEL_ARGS"},
    {-54, "INVALID_WORK_GROUP_SIZE"},
    {-55, "INVALID_WORK_ITEM_SIZE"},
    {-59, "INVALID_OPERATION"},
    {-61, "INVALID_BUFFER_SIZE"},
    {-63, "INVALID_GLOBAL_WORK_SIZE"},
    {-1001, "PLATFORM_NOT_FOUND_KHR"},
    {-9999, "of NVIDIA: illegal read or write"},
};

}  // namespace

const Library& library() { return library_of_process(open_library, lost_library, "OpenCL"); }

std::string error_name(Int code) {
  if (code == kLost && !library().fault.empty()) return library().fault;
  for (const Named& error : kErrors)
    if (error.code == code)
      return "CL_" + std::string(error.name) + " (" + std::to_string(code) + ")";
  return "error " + std::to_string(code);
}

}  // namespace pyflow::device::cl
