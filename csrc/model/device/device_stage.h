// Which blocks of a stage run on devices, and the weights that lie there. Immutable once built, shared
// by the contexts of the stage.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/ops.h"
#include "model/device/device_weights.h"
#include "model/device/home.h"
#include "quant/packed_tensor.h"

namespace pyflow {

// Devices that share the rows of their matrices.
using DeviceGroup = std::vector<std::shared_ptr<device::Device>>;

// What of a stage is to run on devices: of these layers, the blocks that can.
struct Offload {
  std::vector<DeviceGroup> groups = {};  // none: nothing is
  std::vector<Home> layers = {};         // by layer
  std::vector<uint8_t> experts = {};     // by layer: whether its experts go with it
  Home head = kHost;
  // Of ranks that share the layers of each group, which is one device then.
  Membership ranks = {};
  bool allow_inexact = false;
  std::string programs = {};  // the folder that keeps them; empty: none does
};

// One device of a group.
class DeviceStage {
 public:
  // Compiles the program and allocates the weights' memory. Throws ResourceError, what `poll` throws
  // meanwhile, and UnsupportedError for a device without the bits of the CPU, unless that is
  // allowed.
  DeviceStage(const Offload& offload, Home group, Membership own,
              std::span<const NamedMatrix> matrices, const DeviceNeeds& needs,
              const std::function<void()>& poll);
  Home group() const { return group_; }
  const Membership& own() const { return own_; }
  // Among the devices of its group that are here.
  size_t number() const { return number_; }
  DeviceWeights& weights() { return weights_; }
  const DeviceWeights& weights() const { return weights_; }
  const device::Compiled& compiled() const { return compiled_; }
  device::Device& device() const { return *device_; }
  // The first operation that differs from the CPU's; nothing if the device is exact.
  const std::string& fault() const { return fault_; }

 private:
  Home group_;
  Membership own_;
  size_t number_;
  std::shared_ptr<device::Device> device_;
  DeviceWeights weights_;
  device::Compiled compiled_;
  std::string fault_;
};

}  // namespace pyflow
