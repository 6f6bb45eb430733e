// Programs from source, or from a folder that keeps what was compiled before.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>

#include "core/dtype.h"
#include "device/device.h"
#include "device/program/source.h"

namespace pyflow::device {

// A program for the contexts of a model to share.
struct Compiled {
  std::shared_ptr<Device> device;
  std::shared_ptr<const Program> program;
  int slices = 0;             // of a group (source.h)
  bool matrix_units = false;  // multiply many rows
  std::string units_fault;    // why they do not, on a device that has them
  bool from_cache = false;    // nothing was compiled
  std::string refusal;        // why the folder could not keep it, or nothing
};

// Called at least each 50 ms while a driver compiles, which may take seconds. What it throws ends the
// waiting; the driver goes on.
using Poll = std::function<void()>;

// On a thread of its own, since no driver can be interrupted. What work has must be its own.
void run_apart(std::function<void()> work, const Poll& poll);
// How many such threads there are. A process may not run its exit handlers before they end: compilers
// need what these destroy.
int n_apart();

// For weights of these formats. A file of `folder` is used only if source, options, device and
// driver are those that it was made from, its checksum is right and the driver takes it; otherwise
// it is written anew. An empty folder name keeps nothing. Throws DeviceError.
Compiled compile(std::shared_ptr<Device> device, std::span<const DType> formats,
                 const std::string& folder, const Poll& poll = nullptr);
Compiled compile(std::shared_ptr<Device> device, const Source& source, const std::string& folder,
                 const Poll& poll = nullptr);

}  // namespace pyflow::device
