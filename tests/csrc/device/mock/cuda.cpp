// libcuda for tests without a GPU: the calls that csrc/device/cuda makes, over OpenCL's
// shared virtual memory. A program is its source with the other prelude (nvrtc.cpp), so kernels
// compute. Four devices of one OpenCL device, which have little memory if a test says so.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <set>
#include <vector>

#include "cuda.h"

using namespace mock;

namespace {

constexpr int kDevices = 4;
constexpr size_t kMemory = size_t{4} << 30;
constexpr size_t kGuard = 4096;  // bytes behind each allocation that nobody may write to
constexpr uint8_t kGuardByte = 0xa5;

std::mutex lock;
std::map<Address, size_t> live;
std::set<cl::QueueId> queues;
size_t limit = kMemory, total = kMemory;
std::atomic<int> late_ms = 0;
thread_local std::vector<Context> current;

Context context_of(int device) { return reinterpret_cast<Context>(intptr_t{device} + 1); }

size_t in_use() {
  size_t sum = 0;
  for (const auto& [memory, nbytes] : live) sum += nbytes;
  return sum;
}

template <class T>
T* pointer(Address address) {
  return reinterpret_cast<T*>(address);
}

}  // namespace

struct pyflow::device::cuda::EventObject {
  cl::EventId event;
  std::chrono::steady_clock::time_point recorded;
};

bool mock::in_context() { return !current.empty(); }

extern "C" {

// For tests: bytes that are in use; how many there are in all, and how many devices say that they
// have; what the next call of a function answers, and how many there were; how long commands take
// at least.
size_t small_memory_in_use() {
  const std::lock_guard guard(lock);
  return in_use();
}
void small_memory_limit(size_t all, size_t one, int) {
  const std::lock_guard guard(lock);
  limit = std::min(all, kMemory);
  total = std::min(one, kMemory);
}
void mock_answer(const char* function, Result code) { answer(function, code); }
size_t mock_calls(const char* function) { return calls(function); }
void mock_late(int ms) { late_ms = ms; }

Result cuInit(unsigned) { return machine().device ? kSuccess : 100; }
Result cuGetExportTable(const void**, const void*) { return kNotFound; }  // NVRTC asks for it
Result cuDriverGetVersion(int* version) {
  *version = kVersion;
  return kSuccess;
}
Result cuGetErrorName(Result code, const char** name) {
  *name = code == kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY"
          : code == 719        ? "CUDA_ERROR_LAUNCH_FAILED"
          : code == 209        ? "CUDA_ERROR_NO_BINARY_FOR_GPU"
                               : "CUDA_ERROR_UNKNOWN";
  return kSuccess;
}
Result cuDeviceGetCount(int* n) {
  TOLD();
  *n = kDevices;
  return kSuccess;
}
Result cuDeviceGet(DeviceId* id, int i) {
  *id = i;
  return kSuccess;
}
Result cuDeviceGetName(char* to, int size, DeviceId id) {
  std::strncpy(to, ("Mock " + std::to_string(id)).c_str(), static_cast<size_t>(size));
  return kSuccess;
}
Result cuDeviceGetAttribute(int* value, int what, DeviceId id) {
  const std::map<int, int> values = {{kMostItems, 1024}, {kLocalMemory, 48 << 10},
                                     {kUnits, 2},        {kPciBus, id + 1},
                                     {kMajor, 9},        {kMinor, 0}};
  const auto found = values.find(what);
  *value = found == values.end() ? 0 : found->second;
  return kSuccess;
}
Result cuDeviceTotalMem_v2(size_t* nbytes, DeviceId) {
  const std::lock_guard guard(lock);
  *nbytes = total;
  return kSuccess;
}
Result cuDevicePrimaryCtxRetain(Context* context, DeviceId id) {
  TOLD();
  *context = context_of(id);
  return kSuccess;
}
Result cuDevicePrimaryCtxRelease_v2(DeviceId) { return kSuccess; }
Result cuCtxPushCurrent_v2(Context context) {
  current.push_back(context);
  return kSuccess;
}
Result cuCtxPopCurrent_v2(Context* context) {
  if (current.empty()) return kInvalidContext;
  *context = current.back();
  current.pop_back();
  return kSuccess;
}

Result cuMemGetInfo_v2(size_t* free, size_t* all) {
  IN_CONTEXT();
  const std::lock_guard guard(lock);
  *free = limit - std::min(limit, in_use());
  *all = total;
  return kSuccess;
}
Result cuMemAlloc_v2(Address* address, size_t nbytes) {
  IN_CONTEXT();
  const std::lock_guard guard(lock);
  if (nbytes == 0) return kInvalidValue;
  if (in_use() + nbytes > limit) return kOutOfMemory;
  void* memory = machine().svm.alloc(machine().context, cl::kReadWrite, nbytes + kGuard, 128);
  if (!memory) return kOutOfMemory;
  *address = reinterpret_cast<Address>(memory);
  std::memset(pointer<uint8_t>(*address + nbytes), kGuardByte, kGuard);
  live[*address] = nbytes;
  return kSuccess;
}
// As the driver, waits for all commands.
Result cuMemFree_v2(Address address) {
  IN_CONTEXT();
  const std::lock_guard guard(lock);
  for (cl::QueueId queue : queues) api().Finish(queue);
  const auto found = live.find(address);
  if (found == live.end()) return kInvalidValue;
  const uint8_t* end = pointer<uint8_t>(address + found->second);
  if (std::count(end, end + kGuard, kGuardByte) != kGuard) {
    std::fprintf(stderr, "mock: something wrote behind %zu bytes\n", found->second);
    std::abort();
  }
  live.erase(found);
  machine().svm.free(machine().context, pointer<void>(address));
  return kSuccess;
}
Result cuMemHostRegister_v2(void*, size_t, unsigned) {
  IN_CONTEXT();
  return kSuccess;
}
Result cuMemHostUnregister(void*) {
  IN_CONTEXT();
  return kSuccess;
}
Result cuMemHostGetDevicePointer_v2(Address* address, void* memory, unsigned) {
  IN_CONTEXT();
  *address = reinterpret_cast<Address>(memory);
  return kSuccess;
}

Result cuStreamCreate(Stream* stream, unsigned) {
  IN_CONTEXT();
  *stream =
      new StreamObject{api().CreateCommandQueue(machine().context, machine().device, 0, nullptr)};
  return kSuccess;
}
Result cuStreamDestroy_v2(Stream stream) {
  IN_CONTEXT();
  const std::lock_guard guard(lock);
  queues.erase(stream->queue);
  api().ReleaseCommandQueue(stream->queue);
  delete stream;
  return kSuccess;
}
Result cuStreamSynchronize(Stream stream) {
  IN_CONTEXT();
  return result(api().Finish(stream->queue));
}
Result cuStreamWaitEvent(Stream stream, EventId event, unsigned) {
  IN_CONTEXT();
  return result(api().EnqueueBarrierWithWaitList(stream->queue, 1, &event->event, nullptr));
}

Result cuEventCreate(EventId* event, unsigned) {
  IN_CONTEXT();
  *event = new EventObject{nullptr};
  return kSuccess;
}
Result cuEventDestroy_v2(EventId event) {
  IN_CONTEXT();
  if (event->event) api().ReleaseEvent(event->event);
  delete event;
  return kSuccess;
}
Result cuEventRecord(EventId event, Stream stream) {
  IN_CONTEXT();
  event->recorded = std::chrono::steady_clock::now();
  api().EnqueueMarkerWithWaitList(stream->queue, 0, nullptr, &event->event);
  return result(api().Flush(stream->queue));
}
Result cuEventQuery(EventId event) {
  IN_CONTEXT();
  if (std::chrono::steady_clock::now() < event->recorded + std::chrono::milliseconds(late_ms))
    return kNotReady;
  cl::Int status = cl::kComplete;
  api().GetEventInfo(event->event, cl::kEventStatus, sizeof status, &status, nullptr);
  return status == cl::kComplete ? kSuccess : status < 0 ? kFailed : kNotReady;
}
Result cuEventSynchronize(EventId event) {
  api().WaitForEvents(1, &event->event);  // nothing is on its way when it has failed
  IN_CONTEXT();
  return kSuccess;
}

Result cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t nbytes, Stream stream) {
  IN_CONTEXT();
  return result(
      machine().svm.copy(stream->queue, 0, pointer<void>(to), from, nbytes, 0, nullptr, nullptr));
}
Result cuMemcpyDtoHAsync_v2(void* to, Address from, size_t nbytes, Stream stream) {
  IN_CONTEXT();
  return result(
      machine().svm.copy(stream->queue, 0, to, pointer<void>(from), nbytes, 0, nullptr, nullptr));
}
Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t nbytes, Stream stream) {
  IN_CONTEXT();
  return result(machine().svm.copy(stream->queue, 0, pointer<void>(to), pointer<void>(from), nbytes,
                                   0, nullptr, nullptr));
}
// Not by clEnqueueSVMMemFill: PoCL 3.1 then writes where it should not.
Result cuMemsetD8Async(Address to, unsigned char byte, size_t nbytes, Stream stream) {
  IN_CONTEXT();
  const cl::Int code = api().Finish(stream->queue);
  std::memset(pointer<void>(to), byte, nbytes);
  return result(code);
}

}  // extern "C"
