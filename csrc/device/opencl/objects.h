// The objects of opencl.cpp: a device's context, and what is made in it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/driver.h"
#include "device/opencl/api.h"

namespace pyflow::device::cl {

// An object of OpenCL that is released once.
template <class Id, auto Release>
class Owned {
 public:
  Owned() = default;
  explicit Owned(Id id) : id_(id) {}
  Owned(Owned&& other) noexcept : id_(std::exchange(other.id_, nullptr)) {}
  Owned& operator=(Owned&& other) noexcept {
    std::swap(id_, other.id_);
    return *this;
  }
  ~Owned() {
    if (id_ && library().fault.empty()) (library().*Release)(id_);
  }
  Id get() const { return id_; }

 private:
  Id id_ = nullptr;
};

using OwnedContext = Owned<Context, &Library::ReleaseContext>;
using OwnedQueue = Owned<QueueId, &Library::ReleaseCommandQueue>;
using OwnedMemory = Owned<Memory, &Library::ReleaseMemObject>;
using OwnedProgram = Owned<ProgramId, &Library::ReleaseProgram>;
using OwnedKernel = Owned<KernelId, &Library::ReleaseKernel>;
using OwnedEvent = Owned<EventId, &Library::ReleaseEvent>;

// What all objects of a device share.
struct Opened {
  DeviceInfo info;
  DeviceId id = nullptr;
  OwnedContext context;

  // Throws DeviceError: device, what was tried, what the driver answered.
  [[noreturn]] void fail(const std::string& tried, Int code) const;
  void require(Int code, const char* tried) const {
    if (code != kSuccess) fail(tried, code);
  }
};
using Shared = std::shared_ptr<const Opened>;

class OpenClBuffer final : public DeviceBuffer {
 public:
  OpenClBuffer(Shared opened, OwnedMemory memory, size_t nbytes, bool whole)
      : opened_(std::move(opened)), memory_(std::move(memory)), nbytes_(nbytes), whole_(whole) {}
  size_t nbytes() const override { return nbytes_; }
  std::unique_ptr<DeviceBuffer> slice(size_t offset, size_t nbytes) const override;
  Memory id() const { return memory_.get(); }

 private:
  Shared opened_;
  OwnedMemory memory_;
  size_t nbytes_;
  bool whole_;
};

class OpenClKernel final : public Kernel {
 public:
  OpenClKernel(Shared opened, OwnedKernel kernel, std::string name)
      : opened_(std::move(opened)), kernel_(std::move(kernel)), name_(std::move(name)) {}
  KernelId id() const { return kernel_.get(); }
  const std::string& name() const { return name_; }

 private:
  Shared opened_;
  OwnedKernel kernel_;
  std::string name_;
};

std::unique_ptr<Queue> make_queue(Shared opened);

// A device that is opened now.
std::shared_ptr<Device> open(const DeviceInfo& info, DeviceId id);

}  // namespace pyflow::device::cl
