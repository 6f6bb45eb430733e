// What the parts of the mock share.
#pragma once

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "device/cuda/api.h"
#include "device/opencl/api.h"

namespace mock {

namespace cl = pyflow::device::cl;
using namespace pyflow::device::cuda;

inline constexpr int kVersion = 12'090;  // 12.9
inline constexpr Result kInvalidValue = 1, kInvalidContext = 201, kNotFound = 500, kFailed = 999;

// Of OpenCL 2, beside those that pyflow uses.
struct Shared {
  void* (*alloc)(cl::Context, cl::Bits, size_t, cl::Uint);
  void (*free)(cl::Context, void*);
  cl::Int (*copy)(cl::QueueId, cl::Uint, void*, const void*, size_t, cl::Uint, const cl::EventId*,
                  cl::EventId*);
  cl::Int (*set)(cl::KernelId, cl::Uint, const void*);
  cl::Int (*kernel_info)(cl::KernelId, cl::Uint, size_t, void*, size_t*);
};

struct Machine {
  cl::DeviceId device = nullptr;
  cl::Context context = nullptr;
  Shared svm = {};

  Machine();
};

Machine& machine();
inline const cl::Library& api() { return cl::library(); }
inline Result result(cl::Int code) { return code == cl::kSuccess ? kSuccess : kFailed; }

// What the next call of a function answers, once, if a test wants it; otherwise success.
void answer(const std::string& function, Result code);
Result told(const std::string& function);
// Calls of a function so far.
size_t calls(const std::string& function);

// Whether this thread has a context.
bool in_context();

}  // namespace mock

struct pyflow::device::cuda::StreamObject {
  mock::cl::QueueId queue;
};

#define TOLD() \
  if (const Result code = mock::told(__func__); code != kSuccess) return code
#define IN_CONTEXT() \
  TOLD();            \
  if (!mock::in_context()) return mock::kInvalidContext
