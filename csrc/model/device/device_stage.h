// The blocks of a stage that run on a device, with their weights there. Immutable once built,
// shared by the contexts of the stage.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "device/ops.h"
#include "model/device/device_weights.h"
#include "quant/packed_tensor.h"

namespace pyflow {

// What of a stage is to run on a device: of these layers, the blocks that can.
struct Offload {
  std::shared_ptr<device::Device> device = nullptr;  // null: nothing is
  std::vector<uint8_t> layers = {};                  // by layer
  bool head = false;
  bool allow_inexact = false;
  std::string programs = {};  // the folder that keeps them; empty: none does
};

class DeviceStage {
 public:
  // Compiles the program and allocates the weights' memory. Throws ResourceError, and
  // UnsupportedError for a device without the bits of the CPU, unless that is allowed.
  DeviceStage(const Offload& offload, const std::vector<const PackedTensor*>& matrices);
  DeviceWeights& weights() { return weights_; }
  const DeviceWeights& weights() const { return weights_; }
  const device::Compiled& compiled() const { return compiled_; }
  device::Device& device() const { return *device_; }
  // The first operation that differs from the CPU's; nothing if the device is exact.
  const std::string& fault() const { return fault_; }

 private:
  std::shared_ptr<device::Device> device_;
  DeviceWeights weights_;
  device::Compiled compiled_;
  std::string fault_;
};

}  // namespace pyflow
