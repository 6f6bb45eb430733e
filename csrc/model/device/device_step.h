// One step as the blocks on a device see it: what they record their commands with.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "device/ops.h"
#include "model/device/device_weights.h"
#include "model/step.h"

namespace pyflow {

// The angles of one RopeSpec, by row.
struct DeviceRope {
  device::FloatRows cos_sin;
  int64_t n_pairs;
  bool interleaved;
};

// Where the keys and values of a layer are, and what its rows see.
struct DeviceLayer {
  device::DeviceCells cells;
  const device::DeviceBuffer *slots, *views, *runs;
  int64_t most_blocks, most_spans;
};

struct DeviceProduct {
  const PackedTensor* weight;
  device::FloatRows y;
};

// Where a step computes; of the context.
struct DeviceMemory {
  device::DeviceBuffer *temp, *acts, *pairs, *attention;
};

class DeviceStep {
 public:
  using FloatRows = device::FloatRows;

  DeviceStep(const DeviceWeights& of, device::Ops& by, device::Queue& on, DeviceMemory in,
             int64_t rows)
      : n_rows(rows), weights(of), ops(by), queue(on), memory(in) {}

  int64_t n_rows;
  const DeviceWeights& weights;
  device::Ops& ops;
  device::Queue& queue;
  DeviceMemory memory;
  std::array<FloatRows, kRegisters> registers{};  // rows of n_embd floats
  std::vector<DeviceRope> ropes;
  std::vector<DeviceLayer> layers;  // by number of those that cache

  // Rows of n floats in temp, until the block ends.
  FloatRows take(int64_t n) {
    const FloatRows rows = {memory.temp, taken_, padded(n)};
    taken_ += n_rows * rows.stride;
    return rows;
  }
  void end_block() { taken_ = 0; }

  // y = W x for matrices over the same n rows of input, which is rounded as they need it.
  void multiply(std::span<const DeviceProduct> products, FloatRows x, int64_t n);
  // y = W x + bias; null: no bias.
  void multiply(const DeviceProduct& product, const float* bias, FloatRows x, int64_t n);
  // x += the same n values in each of n_rows rows; null: nothing.
  void add(FloatRows x, const float* values, int64_t n_rows, int64_t n);

 private:
  int64_t taken_ = 0;
};

}  // namespace pyflow
