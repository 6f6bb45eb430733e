// Commands of a device, and moments between them.
#include <algorithm>
#include <thread>

#include "device/cuda/objects.h"

namespace pyflow::device::cuda {
namespace {

// A few layers of one row take less than the first of these; sleeping costs the second at least.
constexpr auto kBusyPeriod = std::chrono::microseconds(200), kSleep = std::chrono::microseconds(50);

class CudaEvent final : public Event {
 public:
  CudaEvent(Shared opened, EventId id) : opened_(std::move(opened)), id_(id) {}
  ~CudaEvent() override {
    opened_->release([&](const Library& api) { return api.EventDestroy(id_); });
  }
  CudaEvent(const CudaEvent&) = delete;
  CudaEvent& operator=(const CudaEvent&) = delete;

  bool done() const override {
    const Result code =
        opened_->in_context([&](const Library& api) { return api.EventQuery(id_); });
    if (code != kSuccess && code != kNotReady) opened_->fail("running commands", code);
    return code == kSuccess;
  }

  void wait() const override {
    opened_->run("running commands", [&](const Library& api) { return api.EventSynchronize(id_); });
  }

  void wait(const std::function<void()>& poll) const override {
    if (!poll) return wait();
    using Clock = std::chrono::steady_clock;
    const auto start = Clock::now();
    for (auto polled = start; !done();) {
      const auto now = Clock::now();
      if (now - start < kBusyPeriod)
        std::this_thread::yield();
      else
        std::this_thread::sleep_for(kSleep);
      if (now - polled < kPollPeriod) continue;
      poll();
      polled = now;
    }
  }

  EventId id() const { return id_; }

 private:
  Shared opened_;
  EventId id_;
};

Address address_of(const DeviceBuffer& buffer) {
  return static_cast<const CudaBuffer&>(buffer).address();
}

class CudaQueue final : public Queue {
 public:
  CudaQueue(Shared opened, Stream stream) : opened_(std::move(opened)), stream_(stream) {}
  // What is on its way may still use buffers that their owner is about to free.
  ~CudaQueue() override {
    opened_->release([&](const Library& api) {
      api.StreamSynchronize(stream_);
      return api.StreamDestroy(stream_);
    });
  }
  CudaQueue(const CudaQueue&) = delete;
  CudaQueue& operator=(const CudaQueue&) = delete;

  void upload(const void* from, DeviceBuffer& to, size_t offset, size_t nbytes) override {
    if (nbytes == 0) return;
    opened_->run("copying to the device", [&](const Library& api) {
      return api.CopyToDevice(address_of(to) + offset, from, nbytes, stream_);
    });
  }
  void download(const DeviceBuffer& from, size_t offset, void* to, size_t nbytes) override {
    if (nbytes == 0) return;
    opened_->run("copying from the device", [&](const Library& api) {
      return api.CopyToHost(to, address_of(from) + offset, nbytes, stream_);
    });
  }
  void copy(const DeviceBuffer& from, size_t from_offset, DeviceBuffer& to, size_t to_offset,
            size_t nbytes) override {
    if (nbytes == 0) return;
    opened_->run("copying on the device", [&](const Library& api) {
      return api.CopyOnDevice(address_of(to) + to_offset, address_of(from) + from_offset, nbytes,
                              stream_);
    });
  }
  void fill(DeviceBuffer& to, size_t offset, size_t nbytes, uint8_t byte) override {
    if (nbytes == 0) return;
    opened_->run("filling memory", [&](const Library& api) {
      return api.Fill(address_of(to) + offset, byte, nbytes, stream_);
    });
  }

  void launch(Kernel& kernel, const Grid& grid, std::span<const Argument> arguments) override {
    if (std::ranges::count(grid.groups, 0)) return;
    const auto& called = static_cast<const CudaKernel&>(kernel);
    values_.resize(arguments.size());
    pointers_.resize(arguments.size());
    for (size_t i = 0; i < arguments.size(); ++i) pointers_[i] = set(values_[i], arguments[i]);
    const auto n = [](int64_t x) { return static_cast<unsigned>(x); };
    opened_->run(called.name().c_str(), [&](const Library& api) {
      return api.LaunchKernel(called.function(), n(grid.groups[0]), n(grid.groups[1]),
                              n(grid.groups[2]), n(grid.items), 1, 1, 0, stream_, pointers_.data(),
                              nullptr);
    });
  }

  std::unique_ptr<Event> mark() override {
    EventId id = nullptr;
    opened_->run("marking a queue",
                 [&](const Library& api) { return api.EventCreate(&id, kEventWithoutTime); });
    auto event = std::make_unique<CudaEvent>(opened_, id);
    opened_->run("marking a queue",
                 [&](const Library& api) { return api.EventRecord(id, stream_); });
    return event;
  }
  void after(const Event& event) override {
    opened_->run("joining queues", [&](const Library& api) {
      return api.StreamWaitEvent(stream_, static_cast<const CudaEvent&>(event).id(), 0);
    });
  }
  void flush() override {}
  void finish() override { mark()->wait(); }

 private:
  union Value {
    Address address;
    int32_t i32;
    int64_t i64;
    float f32;
  };
  // Where the driver reads an argument.
  static void* set(Value& value, const Argument& argument) {
    struct Visitor {
      Value& value;
      void operator()(const DeviceBuffer* buffer) { value.address = address_of(*buffer); }
      void operator()(std::nullptr_t) { value.address = 0; }
      void operator()(int32_t x) { value.i32 = x; }
      void operator()(int64_t x) { value.i64 = x; }
      void operator()(float x) { value.f32 = x; }
    };
    std::visit(Visitor{value}, argument);
    return &value;
  }

  Shared opened_;
  Stream stream_;
  std::vector<Value> values_;
  std::vector<void*> pointers_;
};

}  // namespace

std::unique_ptr<Queue> make_queue(Shared opened) {
  Stream stream = nullptr;
  opened->run("making a queue",
              [&](const Library& api) { return api.StreamCreate(&stream, kStreamOfItsOwn); });
  return std::make_unique<CudaQueue>(std::move(opened), stream);
}

}  // namespace pyflow::device::cuda
