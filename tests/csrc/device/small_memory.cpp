// An OpenCL loader whose devices have little memory. It stands before the real one, which has been
// copied as libRealCL.so.1, and passes everything on but what is here.
//
// Drivers refuse memory when it is asked for, or when it is first used: both can be had.
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "device/opencl/api.h"

using namespace pyflow::device::cl;

namespace {

std::mutex lock;
std::map<Memory, size_t> live;
size_t limit = SIZE_MAX, largest = SIZE_MAX;
bool refuses_use = false;

template <class F>
F real(F, const char* name) {
  return reinterpret_cast<F>(dlsym(RTLD_NEXT, name));
}

size_t in_use() {
  size_t sum = 0;
  for (const auto& [memory, nbytes] : live) sum += nbytes;
  return sum;
}

}  // namespace

extern "C" {

// Bytes that live buffers have; of all of them, and of one, at most. use: refused at first use.
size_t small_memory_in_use() {
  const std::lock_guard guard(lock);
  return in_use();
}
void small_memory_limit(size_t all, size_t one, int use) {
  const std::lock_guard guard(lock);
  limit = all;
  largest = one;
  refuses_use = use != 0;
}

Memory clCreateBuffer(Context context, Bits flags, size_t nbytes, void* host, Int* code) {
  const std::lock_guard guard(lock);
  if (!refuses_use && in_use() + nbytes > limit) {
    *code = kAllocationFailure;
    return nullptr;
  }
  const Memory memory = real(clCreateBuffer, "clCreateBuffer")(context, flags, nbytes, host, code);
  if (memory) live[memory] = nbytes;
  return memory;
}

Int clReleaseMemObject(Memory memory) {
  const std::lock_guard guard(lock);
  live.erase(memory);
  return real(clReleaseMemObject, "clReleaseMemObject")(memory);
}

// Commands have failed when somebody waits for them.
Int clEnqueueMarkerWithWaitList(QueueId queue, Uint n, const EventId* list, EventId* event) {
  const std::lock_guard guard(lock);
  if (refuses_use && in_use() > limit) return kAllocationFailure;
  return real(clEnqueueMarkerWithWaitList, "clEnqueueMarkerWithWaitList")(queue, n, list, event);
}

Int clGetDeviceInfo(DeviceId device, Uint what, size_t size, void* to, size_t* all) {
  const Int code = real(clGetDeviceInfo, "clGetDeviceInfo")(device, what, size, to, all);
  const std::lock_guard guard(lock);
  if (code == kSuccess && what == kDeviceLargestBuffer && to && largest != SIZE_MAX)
    *static_cast<Ulong*>(to) = largest;
  return code;
}

}  // extern "C"
