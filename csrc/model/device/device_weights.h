// The weights of the blocks on a device: matrices as packed tiles, byte for byte, and vectors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "device/device.h"
#include "device/ops.h"
#include "model/device/needs.h"
#include "quant/packed_tensor.h"

namespace pyflow {

// A matrix that goes to a device, and the name of its tensor.
struct NamedMatrix {
  const std::string* name;
  const PackedTensor* packed;
};

// Whole tiles of a matrix in one allocation.
struct DevicePiece {
  int64_t first_row;
  device::DeviceMatrix matrix;
};

// Matrices of one shape that follow each other, so many bytes apart; their rows on this device.
struct DeviceSeries {
  DevicePiece first;  // its memory is that of all
  int64_t matrix_nbytes;
};

class DeviceWeights {
 public:
  DeviceWeights(std::shared_ptr<device::Device> device, Membership own)
      : device_(std::move(device)), own_(own), queue_(device_->make_queue()) {}

  // Allocates memory for its rows of matrices, in this order. Throws ResourceError naming the bytes
  // and the tensors.
  void place(std::span<const NamedMatrix> matrices, const DeviceNeeds& needs);
  // Copies a matrix's tiles, which lie at `tiles`, to where they were placed.
  void upload(const PackedTensor& matrix, const uint8_t* tiles);
  void upload(const DeviceNeeds& needs);

  const std::vector<DevicePiece>& pieces(const PackedTensor& matrix) const {
    return matrices_.at(&matrix);
  }
  // The series that begins with this matrix; null if it lies in several pieces.
  const DeviceSeries* series(const PackedTensor& first) const {
    const auto found = series_.find(&first);
    return found == series_.end() ? nullptr : &found->second;
  }
  const device::DeviceBuffer& vector(const float* v, int64_t n) const {
    return *vectors_.at({v, n});
  }
  // What place() takes for them.
  static size_t nbytes(const device::DeviceInfo&, Membership own,
                       std::span<const NamedMatrix> matrices, const DeviceNeeds& needs);

 private:
  std::shared_ptr<device::Device> device_;
  const Membership own_;
  std::unique_ptr<device::Queue> queue_;
  std::vector<std::unique_ptr<device::DeviceBuffer>> memory_, slices_;
  std::map<const PackedTensor*, std::vector<DevicePiece>> matrices_;
  std::map<const PackedTensor*, DeviceSeries> series_;
  std::map<std::pair<const float*, int64_t>, std::unique_ptr<device::DeviceBuffer>> vectors_;
};

}  // namespace pyflow
