// Memory and programs of a device.
#include <algorithm>

#include "core/message.h"
#include "device/cuda/objects.h"

namespace pyflow::device::cuda {
namespace {

class CudaPinned final : public Pinned {
 public:
  CudaPinned(Shared opened, void* memory) : opened_(std::move(opened)), memory_(memory) {}
  ~CudaPinned() override {
    opened_->release([&](const Library& api) { return api.MemHostUnregister(memory_); });
  }
  CudaPinned(const CudaPinned&) = delete;
  CudaPinned& operator=(const CudaPinned&) = delete;

 private:
  Shared opened_;
  void* memory_;
};

class CudaProgram final : public Program {
 public:
  CudaProgram(Shared opened, std::vector<uint8_t> code)
      : module_(std::make_shared<LoadedModule>(std::move(opened), std::move(code))) {}
  std::unique_ptr<Kernel> kernel(const std::string& name) const override {
    return std::make_unique<CudaKernel>(module_, name);
  }
  std::vector<uint8_t> binary() const override { return module_->code(); }

 private:
  std::shared_ptr<const LoadedModule> module_;
};

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(Shared opened) : opened_(std::move(opened)) {}

  const DeviceInfo& info() const override { return opened_->info; }

  std::optional<uint64_t> free_memory() const override { return free(); }

  std::unique_ptr<DeviceBuffer> allocate(size_t nbytes, const char* what) override {
    Address address = 0;
    take(nbytes, what,
         [&](const Library& api) { return api.MemAlloc(&address, std::max<size_t>(1, nbytes)); });
    return std::make_unique<CudaBuffer>(std::make_shared<Memory>(opened_, address, nullptr), 0,
                                        nbytes, true);
  }
  // Refused where another device has pinned it, which serves all.
  std::unique_ptr<Pinned> pin(void* memory, size_t nbytes) override {
    const Result code = opened_->in_context([&](const Library& api) {
      return api.MemHostRegister(memory, nbytes, kHostOfAllContexts);
    });
    if (code != kSuccess) return nullptr;
    return std::make_unique<CudaPinned>(opened_, memory);
  }
  std::unique_ptr<DeviceBuffer> share(uint8_t* host, size_t nbytes) override {
    Address address = 0;
    take(nbytes, "shared memory", [&](const Library& api) {
      Result code = api.MemHostRegister(host, nbytes, kHostOfAllContexts | kHostMapped);
      if (code != kSuccess) return code;
      code = api.MemHostGetDevicePointer(&address, host, 0);
      if (code != kSuccess) api.MemHostUnregister(host);
      return code;
    });
    return std::make_unique<CudaBuffer>(std::make_shared<Memory>(opened_, address, host), 0, nbytes,
                                        true);
  }

  std::unique_ptr<Program> build(const std::string& source, const std::string& options) override {
    std::vector<uint8_t> code;
    try {
      code = opened_->compiler->compile(source, options, opened_->capability);
    } catch (const DeviceError& error) {
      throw DeviceError(opened_->info.name + " (CUDA): " + error.what());
    }
    return std::make_unique<CudaProgram>(opened_, std::move(code));
  }
  std::unique_ptr<Program> load(std::span<const uint8_t> binary, const std::string&) override {
    return std::make_unique<CudaProgram>(opened_,
                                         std::vector<uint8_t>(binary.begin(), binary.end()));
  }

  std::unique_ptr<Queue> make_queue() override { return cuda::make_queue(opened_); }

 private:
  uint64_t free() const {
    size_t free = 0, all = 0;
    opened_->run("asking for free memory",
                 [&](const Library& api) { return api.MemGetInfo(&free, &all); });
    return free;
  }

  template <class Call>
  void take(size_t nbytes, const char* what, Call&& call) {
    const Result code = opened_->in_context(call);
    if (code == kSuccess) return;
    if (code != kOutOfMemory) opened_->fail("allocating memory", code);
    throw ResourceError(opened_->info.name + ": " + grouped(nbytes) + " bytes for " + what +
                        " refused: " + error_name(code) + "; it has " +
                        grouped(opened_->info.memory) + " bytes, " + grouped(free()) + " free");
  }

  Shared opened_;
};

}  // namespace

void Opened::fail(const std::string& tried, Result code) const {
  if (code == kOutOfMemory)
    throw ResourceError(info.name + " (CUDA): " + tried + ": out of memory, " + error_name(code) +
                        "; choose fewer --gpu-layers, or a smaller context");
  throw DeviceError(info.name + " (CUDA): " + tried + ": " + error_name(code));
}

std::unique_ptr<DeviceBuffer> CudaBuffer::slice(size_t offset, size_t nbytes) const {
  require_slice(memory_->opened().info, whole_, nbytes_, offset, nbytes);
  return std::make_unique<CudaBuffer>(memory_, offset, nbytes, false);
}

LoadedModule::LoadedModule(Shared opened, std::vector<uint8_t> code)
    : opened_(std::move(opened)), code_(std::move(code)) {
  opened_->run("loading a program",
               [&](const Library& api) { return api.ModuleLoadData(&module_, code_.data()); });
}

Function LoadedModule::function(const std::string& name) const {
  Function function = nullptr;
  opened_->run(("kernel " + name).c_str(), [&](const Library& api) {
    return api.ModuleGetFunction(&function, module_, name.c_str());
  });
  return function;
}

std::shared_ptr<Device> open(const DeviceInfo& info, DeviceId id, int capability,
                             const Compiler& compiler) {
  auto opened = std::make_shared<Opened>();
  opened->info = info;
  opened->id = id;
  opened->capability = capability;
  opened->compiler = &compiler;
  Context context = nullptr;
  if (const Result code = library().PrimaryContextRetain(&context, id); code != kSuccess)
    opened->fail("opening the device", code);
  opened->context = context;
  return std::make_shared<CudaDevice>(std::move(opened));
}

}  // namespace pyflow::device::cuda
