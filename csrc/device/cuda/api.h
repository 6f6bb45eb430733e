// What we use of CUDA's driver API and of NVRTC, its compiler, declared by ourselves from their
// documentation, and the libraries that have them, opened at run time: nothing of CUDA is needed to
// build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace pyflow::device::cuda {

using Result = int;
using DeviceId = int;
using Address = uint64_t;  // CUdeviceptr
using Context = struct ContextObject*;
using Module = struct ModuleObject*;
using Function = struct FunctionObject*;
using Stream = struct StreamObject*;
using EventId = struct EventObject*;
using GraphId = struct GraphObject*;
using GraphExec = struct GraphExecObject*;
using GraphNode = struct GraphNodeObject*;
using ProgramId = struct ProgramObject*;  // of NVRTC

inline constexpr Result kSuccess = 0, kOutOfMemory = 2, kNotReady = 600;
inline constexpr unsigned kStreamOfItsOwn = 1;  // CU_STREAM_NON_BLOCKING
inline constexpr unsigned kEventWithoutTime = 2;
inline constexpr unsigned kHostOfAllContexts = 1, kHostMapped = 2;

struct Launch {  // CUlaunchConfig
  unsigned groups[3], items[3], local_memory;
  Stream stream;
  void* attributes;
  unsigned n_attributes;
};

struct NodeLaunch {  // CUDA_KERNEL_NODE_PARAMS_v2
  Function function;
  unsigned groups[3], items[3], local_memory;
  void** arguments;
  void** extra;
  void* kernel;
  Context context;
};

// CUdevice_attribute
inline constexpr int kMostItems = 1, kLocalMemory = 8, kUnits = 16, kUnified = 18, kPciBus = 33,
                     kPciDevice = 34, kPciDomain = 50, kMajor = 75, kMinor = 76;

// F(name, symbol, parameters)
#define PYFLOW_CUDA_FUNCTIONS(F)                                                                \
  F(Init, "cuInit", (unsigned))                                                                 \
  F(DriverGetVersion, "cuDriverGetVersion", (int*))                                             \
  F(GetErrorName, "cuGetErrorName", (Result, const char**))                                     \
  F(DeviceGetCount, "cuDeviceGetCount", (int*))                                                 \
  F(DeviceGet, "cuDeviceGet", (DeviceId*, int))                                                 \
  F(DeviceGetName, "cuDeviceGetName", (char*, int, DeviceId))                                   \
  F(DeviceGetAttribute, "cuDeviceGetAttribute", (int*, int, DeviceId))                          \
  F(DeviceTotalMem, "cuDeviceTotalMem_v2", (size_t*, DeviceId))                                 \
  F(PrimaryContextRetain, "cuDevicePrimaryCtxRetain", (Context*, DeviceId))                     \
  F(PrimaryContextRelease, "cuDevicePrimaryCtxRelease_v2", (DeviceId))                          \
  F(ContextPush, "cuCtxPushCurrent_v2", (Context))                                              \
  F(ContextPop, "cuCtxPopCurrent_v2", (Context*))                                               \
  F(MemGetInfo, "cuMemGetInfo_v2", (size_t*, size_t*))                                          \
  F(MemAlloc, "cuMemAlloc_v2", (Address*, size_t))                                              \
  F(MemFree, "cuMemFree_v2", (Address))                                                         \
  F(MemHostRegister, "cuMemHostRegister_v2", (void*, size_t, unsigned))                         \
  F(MemHostUnregister, "cuMemHostUnregister", (void*))                                          \
  F(MemHostGetDevicePointer, "cuMemHostGetDevicePointer_v2", (Address*, void*, unsigned))       \
  F(ModuleLoadData, "cuModuleLoadData", (Module*, const void*))                                 \
  F(ModuleUnload, "cuModuleUnload", (Module))                                                   \
  F(ModuleGetFunction, "cuModuleGetFunction", (Function*, Module, const char*))                 \
  F(StreamCreate, "cuStreamCreate", (Stream*, unsigned))                                        \
  F(StreamDestroy, "cuStreamDestroy_v2", (Stream))                                              \
  F(StreamSynchronize, "cuStreamSynchronize", (Stream))                                         \
  F(StreamWaitEvent, "cuStreamWaitEvent", (Stream, EventId, unsigned))                          \
  F(EventCreate, "cuEventCreate", (EventId*, unsigned))                                         \
  F(EventDestroy, "cuEventDestroy_v2", (EventId))                                               \
  F(EventRecord, "cuEventRecord", (EventId, Stream))                                            \
  F(EventQuery, "cuEventQuery", (EventId))                                                      \
  F(EventSynchronize, "cuEventSynchronize", (EventId))                                          \
  F(CopyToDevice, "cuMemcpyHtoDAsync_v2", (Address, const void*, size_t, Stream))               \
  F(CopyToHost, "cuMemcpyDtoHAsync_v2", (void*, Address, size_t, Stream))                       \
  F(CopyOnDevice, "cuMemcpyDtoDAsync_v2", (Address, Address, size_t, Stream))                   \
  F(Fill, "cuMemsetD8Async", (Address, unsigned char, size_t, Stream))                          \
  F(LaunchKernel, "cuLaunchKernelEx", (const Launch*, Function, void**, void**))                \
  F(GraphCreate, "cuGraphCreate", (GraphId*, unsigned))                                         \
  F(GraphDestroy, "cuGraphDestroy", (GraphId))                                                  \
  F(GraphAddKernel, "cuGraphAddKernelNode_v2",                                                  \
    (GraphNode*, GraphId, const GraphNode*, size_t, const NodeLaunch*))                         \
  F(GraphInstantiate, "cuGraphInstantiateWithFlags", (GraphExec*, GraphId, unsigned long long)) \
  F(GraphExecSetKernel, "cuGraphExecKernelNodeSetParams_v2",                                    \
    (GraphExec, GraphNode, const NodeLaunch*))                                                  \
  F(GraphExecDestroy, "cuGraphExecDestroy", (GraphExec))                                        \
  F(GraphLaunch, "cuGraphLaunch", (GraphExec, Stream))

#define PYFLOW_NVRTC_FUNCTIONS(F)                                                        \
  F(Version, "nvrtcVersion", (int*, int*))                                               \
  F(GetNumSupportedArchs, "nvrtcGetNumSupportedArchs", (int*))                           \
  F(GetSupportedArchs, "nvrtcGetSupportedArchs", (int*))                                 \
  F(CreateProgram, "nvrtcCreateProgram",                                                 \
    (ProgramId*, const char*, const char*, int, const char* const*, const char* const*)) \
  F(DestroyProgram, "nvrtcDestroyProgram", (ProgramId*))                                 \
  F(CompileProgram, "nvrtcCompileProgram", (ProgramId, int, const char* const*))         \
  F(GetProgramLogSize, "nvrtcGetProgramLogSize", (ProgramId, size_t*))                   \
  F(GetProgramLog, "nvrtcGetProgramLog", (ProgramId, char*))                             \
  F(GetCubinSize, "nvrtcGetCUBINSize", (ProgramId, size_t*))                             \
  F(GetCubin, "nvrtcGetCUBIN", (ProgramId, char*))

#define PYFLOW_CUDA_MEMBER(name, symbol, parameters) Result(*name) parameters = nullptr;

struct Library {
  PYFLOW_CUDA_FUNCTIONS(PYFLOW_CUDA_MEMBER)
  int version = 0;    // of CUDA that the driver speaks: 12.8 is 12080
  std::string fault;  // why it cannot be used, and what to try; empty if it can
};

// Opens libcuda.so.1 at the first call. It stays open: the driver has threads of its own.
const Library& library();

// "CUDA_ERROR_OUT_OF_MEMORY (2)"
std::string error_name(Result code);

// A compiler, and for which devices: compute capability 9.0 is 90.
struct Compiler {
  PYFLOW_NVRTC_FUNCTIONS(PYFLOW_CUDA_MEMBER)
  int major = 0, minor = 0;
  std::vector<int> capabilities;

  // The newest of these whose code a device of that capability runs; 0 if there is none.
  int target(int capability) const;

  // A program for one capability, as device code. options: separated by spaces. Throws DeviceError
  // with the first lines of the log.
  std::vector<uint8_t> compile(const std::string& source, const std::string& options,
                               int capability) const;
};

#undef PYFLOW_CUDA_MEMBER

// The newest for a capability whose code such a driver takes; null if there is none. It is looked for
// where the system has libraries, and in the packages nvidia-cuda-nvrtc beside pyflow.
const Compiler* compiler_for(int capability, int driver_version);

}  // namespace pyflow::device::cuda
