// Commands of a device, and moments between them.
#include <algorithm>
#include <cstring>
#include <thread>

#include "device/cuda/graph.h"

namespace pyflow::device::cuda {
namespace {

// A few layers of one row take less than the first of these; sleeping costs the second at least.
constexpr auto kBusyPeriod = std::chrono::microseconds(200), kSleep = std::chrono::microseconds(50);

// Fewer launches are as fast one by one.
constexpr size_t kFewestOfGraph = 8;

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
    submit();
    opened_->run("copying to the device", [&](const Library& api) {
      return api.CopyToDevice(address_of(to) + offset, from, nbytes, stream_);
    });
  }
  void download(const DeviceBuffer& from, size_t offset, void* to, size_t nbytes) override {
    if (nbytes == 0) return;
    submit();
    opened_->run("copying from the device", [&](const Library& api) {
      return api.CopyToHost(to, address_of(from) + offset, nbytes, stream_);
    });
  }
  void copy(const DeviceBuffer& from, size_t from_offset, DeviceBuffer& to, size_t to_offset,
            size_t nbytes) override {
    if (nbytes == 0) return;
    submit();
    opened_->run("copying on the device", [&](const Library& api) {
      return api.CopyOnDevice(address_of(to) + to_offset, address_of(from) + from_offset, nbytes,
                              stream_);
    });
  }
  void fill(DeviceBuffer& to, size_t offset, size_t nbytes, uint8_t byte) override {
    if (nbytes == 0) return;
    submit();
    opened_->run("filling memory", [&](const Library& api) {
      return api.Fill(address_of(to) + offset, byte, nbytes, stream_);
    });
  }

  void launch(Kernel& kernel, const Grid& grid, std::span<const Argument> arguments) override {
    if (std::ranges::count(grid.groups, 0)) return;
    const auto& called = static_cast<const CudaKernel&>(kernel);
    const auto n = [](int64_t x) { return static_cast<unsigned>(x); };
    Command command = {called.function(),
                       {n(grid.groups[0]), n(grid.groups[1]), n(grid.groups[2])},
                       n(grid.items),
                       {}};
    for (const Argument& argument : arguments) command.arguments.push_back(word_of(argument));
    if (holds_)
      held_.push_back(std::move(command));
    else
      run(command, called.name().c_str());
  }

  bool hold(size_t number) override {
    submit();
    holds_ = true;
    place_ = {number, 0};
    return true;
  }
  void release() override {
    submit();
    holds_ = false;
  }

  std::unique_ptr<Event> mark() override {
    submit();
    EventId id = nullptr;
    opened_->run("marking a queue",
                 [&](const Library& api) { return api.EventCreate(&id, kEventWithoutTime); });
    auto event = std::make_unique<CudaEvent>(opened_, id);
    opened_->run("marking a queue",
                 [&](const Library& api) { return api.EventRecord(id, stream_); });
    return event;
  }
  void after(const Event& event) override {
    submit();
    opened_->run("joining queues", [&](const Library& api) {
      return api.StreamWaitEvent(stream_, static_cast<const CudaEvent&>(event).id(), 0);
    });
  }
  void flush() override { submit(); }
  void finish() override { mark()->wait(); }

 private:
  static uint64_t word_of(const Argument& argument) {
    return std::visit(
        [](const auto& value) {
          using T = std::decay_t<decltype(value)>;
          uint64_t word = 0;
          if constexpr (std::is_same_v<T, const DeviceBuffer*>)
            word = address_of(*value);
          else if constexpr (!std::is_same_v<T, std::nullptr_t>)
            std::memcpy(&word, &value, sizeof value);
          return word;
        },
        argument);
  }

  void run(const Command& command, const char* name) {
    const auto [x, y, z] = command.groups;
    const Launch how = {{x, y, z}, {command.items, 1, 1}, 0, stream_, nullptr, 0};
    auto arguments = command.pointers();
    opened_->run(name, [&](const Library& api) {
      return api.LaunchKernel(&how, command.function, arguments.data(), nullptr);
    });
  }

  // Launches that were held back come before whatever follows them.
  void submit() {
    const std::vector<Command> commands = std::exchange(held_, {});
    if (commands.size() < kFewestOfGraph) {
      for (const Command& command : commands) run(command, "a held command");
    } else {
      graphs_.launch(place_, commands, stream_);
      ++place_.second;
    }
  }

  Shared opened_;
  Stream stream_;
  Graphs graphs_{opened_};
  bool holds_ = false;
  std::vector<Command> held_;
  Graphs::Place place_ = {0, 0};  // of the next graph
};

}  // namespace

std::unique_ptr<Queue> make_queue(Shared opened) {
  Stream stream = nullptr;
  opened->run("making a queue",
              [&](const Library& api) { return api.StreamCreate(&stream, kStreamOfItsOwn); });
  return std::make_unique<CudaQueue>(std::move(opened), stream);
}

}  // namespace pyflow::device::cuda
