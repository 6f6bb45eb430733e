// What we use of OpenCL 1.2, declared by ourselves from its specification, and the library that has
// it, opened at run time: nothing of OpenCL is needed to build.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace pyflow::device::cl {

using Int = int32_t;
using Uint = uint32_t;
using Ulong = uint64_t;
using Bits = uint64_t;  // cl_bitfield
using Platform = struct PlatformObject*;
using DeviceId = struct DeviceObject*;
using Context = struct ContextObject*;
using QueueId = struct QueueObject*;
using Memory = struct MemoryObject*;
using ProgramId = struct ProgramObject*;
using KernelId = struct KernelObject*;
using EventId = struct EventObject*;
using OnContext = void (*)(const char*, const void*, size_t, void*);
using OnBuild = void (*)(ProgramId, void*);
using OnEvent = void (*)(EventId, Int, void*);

struct Region {  // cl_buffer_region
  size_t origin, size;
};

inline constexpr Int kSuccess = 0, kDeviceNotFound = -1, kAllocationFailure = -4,
                     kOutOfResources = -5, kOutOfHostMemory = -6, kBuildFailure = -11,
                     kInvalidBufferSize = -61, kNoPlatform = -1001;
inline constexpr Bits kTypeCpu = 1 << 1, kTypeGpu = 1 << 2, kTypeAll = 0xffffffff;
inline constexpr Bits kReadWrite = 1 << 0, kUseHostMemory = 1 << 3;
inline constexpr Uint kRegionBuffer = 0x1220;
inline constexpr Int kComplete = 0;
inline constexpr Uint kEventStatus = 0x11d3;

inline constexpr Uint kPlatformVersion = 0x0901, kPlatformName = 0x0902;

inline constexpr Uint kDeviceType = 0x1000, kDeviceUnits = 0x1002, kDeviceMostItems = 0x1004,
                      kDeviceLargestBuffer = 0x1010, kDeviceAlignment = 0x1019,
                      kDeviceFloats = 0x101b, kDeviceMemory = 0x101f, kDeviceLocalMemory = 0x1023,
                      kDeviceLittleEndian = 0x1026, kDeviceAvailable = 0x1027,
                      kDeviceCompiler = 0x1028, kDeviceName = 0x102b, kDeviceVendor = 0x102c,
                      kDriverVersion = 0x102d, kDeviceVersion = 0x102f, kDeviceExtensions = 0x1030,
                      kDeviceUnified = 0x1035, kDeviceLanguage = 0x103d,
                      kDevicePciBusNvidia = 0x4008, kDevicePciSlotNvidia = 0x4009,
                      kDevicePciDomainNvidia = 0x400a, kDeviceFreeMemoryAmd = 0x4039;
inline constexpr Bits kFloatsSubnormals = 1 << 0, kFloatsExactDivision = 1 << 7;

inline constexpr Uint kProgramBinarySizes = 0x1165, kProgramBinaries = 0x1166,
                      kProgramBuildLog = 0x1183;

// F(result, name, parameters)
#define PYFLOW_OPENCL_FUNCTIONS(F)                                                               \
  F(Int, GetPlatformIDs, (Uint, Platform*, Uint*))                                               \
  F(Int, GetPlatformInfo, (Platform, Uint, size_t, void*, size_t*))                              \
  F(Int, GetDeviceIDs, (Platform, Bits, Uint, DeviceId*, Uint*))                                 \
  F(Int, GetDeviceInfo, (DeviceId, Uint, size_t, void*, size_t*))                                \
  F(Context, CreateContext, (const intptr_t*, Uint, const DeviceId*, OnContext, void*, Int*))    \
  F(Int, ReleaseContext, (Context))                                                              \
  F(QueueId, CreateCommandQueue, (Context, DeviceId, Bits, Int*))                                \
  F(Int, ReleaseCommandQueue, (QueueId))                                                         \
  F(Memory, CreateBuffer, (Context, Bits, size_t, void*, Int*))                                  \
  F(Memory, CreateSubBuffer, (Memory, Bits, Uint, const void*, Int*))                            \
  F(Int, ReleaseMemObject, (Memory))                                                             \
  F(ProgramId, CreateProgramWithSource, (Context, Uint, const char**, const size_t*, Int*))      \
  F(ProgramId, CreateProgramWithBinary,                                                          \
    (Context, Uint, const DeviceId*, const size_t*, const unsigned char**, Int*, Int*))          \
  F(Int, ReleaseProgram, (ProgramId))                                                            \
  F(Int, BuildProgram, (ProgramId, Uint, const DeviceId*, const char*, OnBuild, void*))          \
  F(Int, GetProgramInfo, (ProgramId, Uint, size_t, void*, size_t*))                              \
  F(Int, GetProgramBuildInfo, (ProgramId, DeviceId, Uint, size_t, void*, size_t*))               \
  F(KernelId, CreateKernel, (ProgramId, const char*, Int*))                                      \
  F(Int, ReleaseKernel, (KernelId))                                                              \
  F(Int, SetKernelArg, (KernelId, Uint, size_t, const void*))                                    \
  F(Int, EnqueueReadBuffer,                                                                      \
    (QueueId, Memory, Uint, size_t, size_t, void*, Uint, const EventId*, EventId*))              \
  F(Int, EnqueueWriteBuffer,                                                                     \
    (QueueId, Memory, Uint, size_t, size_t, const void*, Uint, const EventId*, EventId*))        \
  F(Int, EnqueueCopyBuffer,                                                                      \
    (QueueId, Memory, Memory, size_t, size_t, size_t, Uint, const EventId*, EventId*))           \
  F(Int, EnqueueFillBuffer,                                                                      \
    (QueueId, Memory, const void*, size_t, size_t, size_t, Uint, const EventId*, EventId*))      \
  F(Int, EnqueueNDRangeKernel,                                                                   \
    (QueueId, KernelId, Uint, const size_t*, const size_t*, const size_t*, Uint, const EventId*, \
     EventId*))                                                                                  \
  F(Int, EnqueueMarkerWithWaitList, (QueueId, Uint, const EventId*, EventId*))                   \
  F(Int, EnqueueBarrierWithWaitList, (QueueId, Uint, const EventId*, EventId*))                  \
  F(Int, WaitForEvents, (Uint, const EventId*))                                                  \
  F(Int, GetEventInfo, (EventId, Uint, size_t, void*, size_t*))                                  \
  F(Int, SetEventCallback, (EventId, Int, OnEvent, void*))                                       \
  F(Int, ReleaseEvent, (EventId))                                                                \
  F(Int, Flush, (QueueId))                                                                       \
  F(Int, Finish, (QueueId))

struct Library {
#define PYFLOW_OPENCL_MEMBER(result, name, parameters) result(*name) parameters = nullptr;
  PYFLOW_OPENCL_FUNCTIONS(PYFLOW_OPENCL_MEMBER)
#undef PYFLOW_OPENCL_MEMBER
  std::string fault;  // why it cannot be used, and what to try; empty if it can
};

// Opens libOpenCL.so.1 at the first call. It stays open: drivers have threads of their own.
const Library& library();

// "CL_OUT_OF_RESOURCES (-5)"
std::string error_name(Int code);

}  // namespace pyflow::device::cl
