// Memory and programs of a device.
#include <algorithm>

#include "core/message.h"
#include "device/opencl/objects.h"

namespace pyflow::device::cl {
namespace {

constexpr size_t kLogChars = 600;  // the first lines of a log say the most

class OpenClProgram final : public Program {
 public:
  OpenClProgram(Shared opened, OwnedProgram program)
      : opened_(std::move(opened)), program_(std::move(program)) {}

  std::unique_ptr<Kernel> kernel(const std::string& name) const override {
    Int code = kSuccess;
    OwnedKernel kernel(library().CreateKernel(program_.get(), name.c_str(), &code));
    if (code != kSuccess) opened_->fail("kernel " + name, code);
    return std::make_unique<OpenClKernel>(opened_, std::move(kernel), name);
  }

  std::vector<uint8_t> binary() const override {
    size_t size = 0;
    opened_->require(
        library().GetProgramInfo(program_.get(), kProgramBinarySizes, sizeof size, &size, nullptr),
        "reading the size of a program");
    std::vector<uint8_t> bytes(size);
    uint8_t* to = bytes.data();
    opened_->require(
        library().GetProgramInfo(program_.get(), kProgramBinaries, sizeof to, &to, nullptr),
        "reading a program");
    return bytes;
  }

 private:
  Shared opened_;
  OwnedProgram program_;
};

class OpenClDevice final : public Device {
 public:
  explicit OpenClDevice(Shared opened) : opened_(std::move(opened)) {}

  const DeviceInfo& info() const override { return opened_->info; }

  std::optional<uint64_t> free_memory() const override {
    size_t kib[2] = {};  // in all, and in one piece
    if (library().GetDeviceInfo(opened_->id, kDeviceFreeMemoryAmd, sizeof kib, kib, nullptr) !=
        kSuccess)
      return std::nullopt;
    return uint64_t{kib[0]} * 1024;
  }

  std::unique_ptr<DeviceBuffer> allocate(size_t nbytes, const char* what) override {
    return std::make_unique<OpenClBuffer>(opened_, memory(kReadWrite, nullptr, nbytes, what),
                                          nbytes, true);
  }
  // OpenCL 1.2 pins what it allocates itself alone.
  std::unique_ptr<Pinned> pin(void*, size_t) override { return nullptr; }
  std::unique_ptr<DeviceBuffer> share(uint8_t* host, size_t nbytes) override {
    return std::make_unique<OpenClBuffer>(
        opened_, memory(kReadWrite | kUseHostMemory, host, nbytes, "shared memory"), nbytes, true);
  }

  std::unique_ptr<Program> build(const std::string& source, const std::string& options) override {
    const char* text = source.c_str();
    const size_t size = source.size();
    Int code = kSuccess;
    OwnedProgram program(
        library().CreateProgramWithSource(opened_->context.get(), 1, &text, &size, &code));
    opened_->require(code, "taking a program");
    return link(std::move(program), options);
  }
  std::unique_ptr<Program> load(std::span<const uint8_t> binary,
                                const std::string& options) override {
    const unsigned char* bytes = binary.data();
    const size_t size = binary.size();
    Int code = kSuccess, status = kSuccess;
    OwnedProgram program(library().CreateProgramWithBinary(opened_->context.get(), 1, &opened_->id,
                                                           &size, &bytes, &status, &code));
    opened_->require(code != kSuccess ? code : status, "loading a program");
    return link(std::move(program), options);
  }

  std::unique_ptr<Queue> make_queue() override { return cl::make_queue(opened_); }

 private:
  OwnedMemory memory(Bits flags, void* host, size_t nbytes, const char* what) {
    Int code = kSuccess;
    OwnedMemory memory(library().CreateBuffer(opened_->context.get(), flags,
                                              std::max<size_t>(1, nbytes), host, &code));
    if (code == kAllocationFailure || code == kOutOfResources || code == kOutOfHostMemory ||
        code == kInvalidBufferSize)
      throw ResourceError(opened_->info.name + ": " + grouped(nbytes) + " bytes for " + what +
                          " refused: " + error_name(code) + "; it has " +
                          grouped(opened_->info.memory) + " bytes, at most " +
                          grouped(opened_->info.largest_buffer) + " in one piece");
    opened_->require(code, "allocating memory");
    return memory;
  }

  std::unique_ptr<Program> link(OwnedProgram program, const std::string& options) {
    const Library& api = library();
    const Int code =
        api.BuildProgram(program.get(), 1, &opened_->id, options.c_str(), nullptr, nullptr);
    if (code == kSuccess) return std::make_unique<OpenClProgram>(opened_, std::move(program));
    size_t size = 0;
    api.GetProgramBuildInfo(program.get(), opened_->id, kProgramBuildLog, 0, nullptr, &size);
    std::string log(size, '\0');
    api.GetProgramBuildInfo(program.get(), opened_->id, kProgramBuildLog, size, log.data(),
                            nullptr);
    log.resize(std::min({log.size(), log.find('\0'), kLogChars}));
    while (!log.empty() && log.back() == '\n') log.pop_back();
    opened_->fail("building a program: " + log, code);
  }

  Shared opened_;
};

}  // namespace

void Opened::fail(const std::string& tried, Int code) const {
  if (code == kAllocationFailure || code == kOutOfHostMemory)  // some drivers allocate at first use
    throw ResourceError(info.name + " (" + info.api + "): " + tried + ": out of memory, " +
                        error_name(code) + "; choose fewer --gpu-layers, or a smaller context");
  throw DeviceError(info.name + " (" + info.api + "): " + tried + ": " + error_name(code));
}

std::unique_ptr<DeviceBuffer> OpenClBuffer::slice(size_t offset, size_t nbytes) const {
  require_slice(opened_->info, whole_, nbytes_, offset, nbytes);
  const Region region = {offset, nbytes};
  Int code = kSuccess;
  OwnedMemory part(
      library().CreateSubBuffer(memory_.get(), kReadWrite, kRegionBuffer, &region, &code));
  opened_->require(code, "slicing memory");
  return std::make_unique<OpenClBuffer>(opened_, std::move(part), nbytes, false);
}

std::shared_ptr<Device> open(const DeviceInfo& info, DeviceId id) {
  auto opened = std::make_shared<Opened>();
  opened->info = info;
  opened->id = id;
  Int code = kSuccess;
  opened->context = OwnedContext(library().CreateContext(nullptr, 1, &id, nullptr, nullptr, &code));
  opened->require(code, "opening the device");
  return std::make_shared<OpenClDevice>(std::move(opened));
}

}  // namespace pyflow::device::cl
