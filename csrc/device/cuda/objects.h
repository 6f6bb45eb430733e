// The objects of cuda.cpp: a device's context, and what is made in it.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/cuda/api.h"
#include "device/driver.h"

namespace pyflow::device::cuda {

// What all objects of a device share. Its context is the one that other libraries of the process
// use too, and is current only while we call.
struct Opened {
  DeviceInfo info;
  DeviceId id = 0;
  int capability = 0;
  const Compiler* compiler = nullptr;
  Context context = nullptr;

  Opened() = default;
  ~Opened() {
    if (context && library().PrimaryContextRelease) library().PrimaryContextRelease(id);
  }
  Opened(const Opened&) = delete;
  Opened& operator=(const Opened&) = delete;

  // What call(api) answers.
  template <class Call>
  Result in_context(Call&& call) const {
    const Library& api = library();
    if (!api.fault.empty()) throw DeviceError(info.name + ": " + api.fault);
    if (const Result code = api.ContextPush(context); code != kSuccess) return code;
    const Result code = call(api);
    Context ours;
    api.ContextPop(&ours);
    return code;
  }
  // Throws DeviceError: device, what was tried, what the driver answered.
  template <class Call>
  void run(const char* tried, Call&& call) const {
    if (const Result code = in_context(call); code != kSuccess) fail(tried, code);
  }
  // For destructors: nobody hears what the driver answers.
  template <class Call>
  void release(Call&& call) const {
    if (library().fault.empty()) in_context(call);
  }
  [[noreturn]] void fail(const std::string& tried, Result code) const;
};
using Shared = std::shared_ptr<const Opened>;

// Memory that is freed once, with all its slices.
class Memory {
 public:
  // host: of shared memory; null otherwise.
  Memory(Shared opened, Address address, void* host)
      : opened_(std::move(opened)), address_(address), host_(host) {}
  ~Memory() {
    opened_->release([&](const Library& api) {
      return host_ ? api.MemHostUnregister(host_) : api.MemFree(address_);
    });
  }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  const Opened& opened() const { return *opened_; }
  Address address() const { return address_; }

 private:
  Shared opened_;
  Address address_;
  void* host_;
};

class CudaBuffer final : public DeviceBuffer {
 public:
  CudaBuffer(std::shared_ptr<const Memory> memory, size_t offset, size_t nbytes, bool whole)
      : memory_(std::move(memory)), offset_(offset), nbytes_(nbytes), whole_(whole) {}
  size_t nbytes() const override { return nbytes_; }
  std::unique_ptr<DeviceBuffer> slice(size_t offset, size_t nbytes) const override;
  Address address() const { return memory_->address() + offset_; }

 private:
  std::shared_ptr<const Memory> memory_;
  size_t offset_, nbytes_;
  bool whole_;
};

// A program that is loaded.
class LoadedModule {
 public:
  LoadedModule(Shared opened, std::vector<uint8_t> code);
  ~LoadedModule() {
    opened_->release([&](const Library& api) { return api.ModuleUnload(module_); });
  }
  LoadedModule(const LoadedModule&) = delete;
  LoadedModule& operator=(const LoadedModule&) = delete;

  Function function(const std::string& name) const;
  const std::vector<uint8_t>& code() const { return code_; }

 private:
  Shared opened_;
  std::vector<uint8_t> code_;
  Module module_ = nullptr;
};

class CudaKernel final : public Kernel {
 public:
  CudaKernel(std::shared_ptr<const LoadedModule> module, std::string name)
      : module_(std::move(module)), name_(std::move(name)), function_(module_->function(name_)) {}
  Function function() const { return function_; }
  const std::string& name() const { return name_; }

 private:
  std::shared_ptr<const LoadedModule> module_;
  std::string name_;
  Function function_;
};

std::unique_ptr<Queue> make_queue(Shared opened);

// A device that is opened now.
std::shared_ptr<Device> open(const DeviceInfo& info, DeviceId id, int capability,
                             const Compiler& compiler);

}  // namespace pyflow::device::cuda
