// A device that computes beside the CPU: its memory, programs and queues of commands. No arithmetic
// is here, and no model: ops.h has the kernels, whose results have the bits of the scalar table.
//
// Nothing is opened before the first call of find_devices(): it loads the API's library and every
// driver that this knows, which takes tens of milliseconds.
//
//   const auto device = open_device(0);
//   const auto queue = device->make_queue();
//   const auto buffer = device->allocate(nbytes, "weights");
//   queue->upload(from, *buffer, 0, nbytes);
//   queue->launch(*kernel, {{n_groups, 1, 1}, 64}, arguments);
//   queue->download(*buffer, 0, to, nbytes);
//   queue->mark()->wait();
//
// Every call may throw DeviceError, which names the device, the call and the driver's answer, or
// ResourceError if memory is short: some drivers have it refused at the first use of a buffer. A
// device and its programs serve all threads; a kernel and a queue serve one thread at a time.
// Whatever a device made keeps it open.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "core/errors.h"

namespace pyflow::device {

enum class Kind : uint8_t { Gpu, Cpu, Other };

struct DeviceInfo {
  std::string api;  // "CUDA", "OpenCL"
  std::string name, vendor;
  std::string driver;  // all versions of which its arithmetic may depend
  std::string pci;     // its place on the bus, "0000:65:00"; empty if unknown
  Kind kind = Kind::Other;
  uint64_t memory = 0;          // in all
  uint64_t largest_buffer = 0;  // that one allocation may have
  uint64_t local_memory = 0;    // of a group of work-items
  uint32_t compute_units = 0;
  uint32_t most_items = 0;  // work-items of a group
  uint32_t alignment = 0;   // of slices
  bool unified = false;     // its memory is the host's
  bool has_f64 = false;
  bool integer_dots = false;  // OpenCL has words for products of four bytes
  bool matrix_units = false;  // that multiply bytes (kernels/units.dev)
  // As the driver says; a self-test knows better.
  bool exact_division = false;  // with the option for it
  bool subnormals = false;
};

// Bytes in the device's memory.
class DeviceBuffer {
 public:
  virtual ~DeviceBuffer() = default;
  virtual size_t nbytes() const = 0;
  // A part of it, which keeps the whole alive; offset is a multiple of DeviceInfo::alignment. A
  // slice has no slices. Commands that use overlapping slices belong on one queue.
  virtual std::unique_ptr<DeviceBuffer> slice(size_t offset, size_t nbytes) const = 0;
};

// Keeps memory of the host where it is, so that copies to and from the device reach it fastest.
class Pinned {
 public:
  virtual ~Pinned() = default;
};

class Kernel {
 public:
  virtual ~Kernel() = default;
};

class Program {
 public:
  virtual ~Program() = default;
  // Each call makes another one.
  virtual std::unique_ptr<Kernel> kernel(const std::string& name) const = 0;
  // What Device::load takes.
  virtual std::vector<uint8_t> binary() const = 0;
};

// A moment in a queue.
class Event {
 public:
  virtual ~Event() = default;
  // Whether all commands before it have ended. Throws DeviceError if one has failed.
  virtual bool done() const = 0;
  virtual void wait() const = 0;
  // The same, calling poll at least each 50 ms. What it throws ends the waiting, not the commands.
  virtual void wait(const std::function<void()>& poll) const = 0;
};

// What a kernel is called with, in the order of its parameters: a buffer or none, or a number.
using Argument = std::variant<const DeviceBuffer*, std::nullptr_t, int32_t, int64_t, float>;

// Groups along three axes, and work-items of each group along the first one. An axis of 0 groups
// launches nothing.
struct Grid {
  std::array<int64_t, 3> groups;
  int64_t items;
};

// Runs commands one after the other, each after all before it. They begin when there are enough of
// them, or at flush(), mark() or finish().
class Queue {
 public:
  virtual ~Queue() = default;
  // The host's memory must stay as it is until the command has ended.
  virtual void upload(const void* from, DeviceBuffer& to, size_t offset, size_t nbytes) = 0;
  virtual void download(const DeviceBuffer& from, size_t offset, void* to, size_t nbytes) = 0;
  virtual void copy(const DeviceBuffer& from, size_t from_offset, DeviceBuffer& to,
                    size_t to_offset, size_t nbytes) = 0;
  virtual void fill(DeviceBuffer& to, size_t offset, size_t nbytes, uint8_t byte) = 0;
  // Arguments are taken over at once.
  virtual void launch(Kernel& kernel, const Grid& grid, std::span<const Argument> arguments) = 0;
  // Launches between hold() and release() are mostly those of the last time with this number, so a
  // driver may hold them back and run them as one. Returns whether it does.
  virtual bool hold(size_t /*number*/) { return false; }
  virtual void release() {}
  virtual std::unique_ptr<Event> mark() = 0;
  // What follows waits for a moment in another queue of this device.
  virtual void after(const Event& event) = 0;
  virtual void flush() = 0;
  virtual void finish() = 0;  // mark()->wait()
};

// Waits for all commands before memory that they use is given back, whatever happened.
class Drain {
 public:
  explicit Drain(Queue& queue) : queue_(queue) {}
  ~Drain() {
    try {
      queue_.finish();
    } catch (...) {
    }
  }
  Drain(const Drain&) = delete;
  Drain& operator=(const Drain&) = delete;

 private:
  Queue& queue_;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual const DeviceInfo& info() const = 0;
  // Bytes that nobody uses, where the driver tells.
  virtual std::optional<uint64_t> free_memory() const = 0;
  // Memory that holds anything. Throws ResourceError, naming `what` and the bytes.
  virtual std::unique_ptr<DeviceBuffer> allocate(size_t nbytes, const char* what) = 0;
  // Memory of the host, as long as what comes back lives. Null: the driver does not do so.
  virtual std::unique_ptr<Pinned> pin(void* memory, size_t nbytes) = 0;
  // The host's memory as a buffer, for devices with unified memory; it starts and ends at a page
  // and outlives the buffer. The host must not change it meanwhile.
  virtual std::unique_ptr<DeviceBuffer> share(uint8_t* memory, size_t nbytes) = 0;
  virtual std::unique_ptr<Program> build(const std::string& source, const std::string& options) = 0;
  // A program from binary() of an equal build on the same device and driver. Throws DeviceError if
  // the driver does not take it.
  virtual std::unique_ptr<Program> load(std::span<const uint8_t> binary,
                                        const std::string& options) = 0;
  virtual std::unique_ptr<Queue> make_queue() = 0;
};

struct Devices {
  std::vector<DeviceInfo> found;
  // By API without devices: why, and what to try.
  std::vector<std::string> missing;
};

// What this machine has, in the same order each time. A GPU that several APIs know is there once.
Devices find_devices();

// The device of that number in find_devices().found. Throws DeviceError if there is none.
std::shared_ptr<Device> open_device(size_t number);

}  // namespace pyflow::device
