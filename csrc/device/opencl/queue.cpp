// Commands of a device, and moments between them.
#include <condition_variable>
#include <mutex>

#include "device/opencl/objects.h"

namespace pyflow::device::cl {
namespace {

class OpenClEvent final : public Event {
 public:
  OpenClEvent(Shared opened, OwnedEvent event)
      : opened_(std::move(opened)), event_(std::move(event)) {}

  bool done() const override {
    Int status = kComplete;
    opened_->require(
        library().GetEventInfo(event_.get(), kEventStatus, sizeof status, &status, nullptr),
        "asking for a command");
    if (status < 0) opened_->fail("running commands", status);
    return status == kComplete;
  }

  void wait() const override {
    const EventId id = event_.get();
    opened_->require(library().WaitForEvents(1, &id), "waiting for commands");
    done();
  }

  void wait(const std::function<void()>& poll) const override {
    if (!poll) return wait();
    // The driver's thread may call back after poll has thrown, so it holds the bell too.
    struct Bell {
      std::mutex mutex;
      std::condition_variable rung;
      bool over = false;
    };
    const auto bell = std::make_shared<Bell>();
    auto held = std::make_unique<std::shared_ptr<Bell>>(bell);
    const OnEvent ring = [](EventId, Int, void* data) {
      const std::unique_ptr<std::shared_ptr<Bell>> mine(static_cast<std::shared_ptr<Bell>*>(data));
      const std::lock_guard lock((*mine)->mutex);
      (*mine)->over = true;
      (*mine)->rung.notify_all();
    };
    opened_->require(library().SetEventCallback(event_.get(), kComplete, ring, held.get()),
                     "waiting for commands");
    held.release();
    for (std::unique_lock lock(bell->mutex); !bell->over;) {
      if (bell->rung.wait_for(lock, kPollPeriod, [&] { return bell->over; })) break;
      lock.unlock();
      poll();
      lock.lock();
    }
    done();
  }

  EventId id() const { return event_.get(); }

 private:
  Shared opened_;
  OwnedEvent event_;
};

const OpenClBuffer& ours(const DeviceBuffer& buffer) {
  return static_cast<const OpenClBuffer&>(buffer);
}

class OpenClQueue final : public Queue {
 public:
  OpenClQueue(Shared opened, OwnedQueue queue)
      : opened_(std::move(opened)), queue_(std::move(queue)) {}
  // What is on its way may still use buffers that their owner is about to free.
  ~OpenClQueue() override { library().Finish(queue_.get()); }

  void upload(const void* from, DeviceBuffer& to, size_t offset, size_t nbytes) override {
    if (nbytes == 0) return;
    opened_->require(library().EnqueueWriteBuffer(queue_.get(), ours(to).id(), 0, offset, nbytes,
                                                  from, 0, nullptr, nullptr),
                     "copying to the device");
  }
  void download(const DeviceBuffer& from, size_t offset, void* to, size_t nbytes) override {
    if (nbytes == 0) return;
    opened_->require(library().EnqueueReadBuffer(queue_.get(), ours(from).id(), 0, offset, nbytes,
                                                 to, 0, nullptr, nullptr),
                     "copying from the device");
  }
  void copy(const DeviceBuffer& from, size_t from_offset, DeviceBuffer& to, size_t to_offset,
            size_t nbytes) override {
    if (nbytes == 0) return;
    opened_->require(
        library().EnqueueCopyBuffer(queue_.get(), ours(from).id(), ours(to).id(), from_offset,
                                    to_offset, nbytes, 0, nullptr, nullptr),
        "copying on the device");
  }
  void fill(DeviceBuffer& to, size_t offset, size_t nbytes, uint8_t byte) override {
    if (nbytes == 0) return;
    opened_->require(library().EnqueueFillBuffer(queue_.get(), ours(to).id(), &byte, 1, offset,
                                                 nbytes, 0, nullptr, nullptr),
                     "filling memory");
  }

  void launch(Kernel& kernel, const Grid& grid, std::span<const Argument> arguments) override {
    const auto& called = static_cast<const OpenClKernel&>(kernel);
    for (size_t i = 0; i < arguments.size(); ++i)
      if (const Int code = set(called.id(), static_cast<Uint>(i), arguments[i]); code != kSuccess)
        opened_->fail("kernel " + called.name() + ", argument " + std::to_string(i), code);
    if (grid.groups[0] == 0 || grid.groups[1] == 0 || grid.groups[2] == 0) return;
    const size_t local[3] = {static_cast<size_t>(grid.items), 1, 1};
    const size_t global[3] = {static_cast<size_t>(grid.groups[0]) * local[0],
                              static_cast<size_t>(grid.groups[1]),
                              static_cast<size_t>(grid.groups[2])};
    if (const Int code = library().EnqueueNDRangeKernel(queue_.get(), called.id(), 3, nullptr,
                                                        global, local, 0, nullptr, nullptr);
        code != kSuccess)
      opened_->fail("kernel " + called.name(), code);
  }

  std::unique_ptr<Event> mark() override {
    EventId id = nullptr;
    opened_->require(library().EnqueueMarkerWithWaitList(queue_.get(), 0, nullptr, &id),
                     "marking a queue");
    auto event = std::make_unique<OpenClEvent>(opened_, OwnedEvent(id));
    flush();
    return event;
  }
  void after(const Event& event) override {
    const EventId id = static_cast<const OpenClEvent&>(event).id();
    opened_->require(library().EnqueueBarrierWithWaitList(queue_.get(), 1, &id, nullptr),
                     "joining queues");
  }
  void flush() override { opened_->require(library().Flush(queue_.get()), "starting commands"); }
  void finish() override { mark()->wait(); }

 private:
  static Int set(KernelId kernel, Uint index, const Argument& argument) {
    const auto by_value = [&](const auto& value) {
      return library().SetKernelArg(kernel, index, sizeof value, &value);
    };
    struct Visitor {
      KernelId kernel;
      Uint index;
      const decltype(by_value)& value;
      Int operator()(const DeviceBuffer* buffer) const { return value(ours(*buffer).id()); }
      Int operator()(std::nullptr_t) const {
        return library().SetKernelArg(kernel, index, sizeof(Memory), nullptr);
      }
      Int operator()(int32_t x) const { return value(x); }
      Int operator()(int64_t x) const { return value(x); }
      Int operator()(float x) const { return value(x); }
    };
    return std::visit(Visitor{kernel, index, by_value}, argument);
  }

  Shared opened_;
  OwnedQueue queue_;
};

}  // namespace

std::unique_ptr<Queue> make_queue(Shared opened) {
  Int code = kSuccess;
  OwnedQueue queue(library().CreateCommandQueue(opened->context.get(), opened->id, 0, &code));
  opened->require(code, "making a queue");
  return std::make_unique<OpenClQueue>(std::move(opened), std::move(queue));
}

}  // namespace pyflow::device::cl
