// What calibration sees of a step (calibrate/). Without an observer each product costs one
// comparison.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "core/thread_pool.h"
#include "kernels/table.h"
#include "kv/kv_cache.h"
#include "quant/packed_tensor.h"

namespace pyflow {

class Stage;

// Rows that matrices are about to be multiplied by.
struct MatrixInput {
  std::span<const PackedTensor* const> weights;  // which share the input
  const float* x;
  int64_t x_stride;  // floats between rows
  int64_t n_rows;
  const int32_t* rows = nullptr;  // their numbers in x; null: 0, 1, ...
  bool is_expert = false;         // the weights see only the rows that chose them
};

// One step of attention, after it has been computed.
struct AttentionInput {
  const PackedTensor& values;  // W_v, one of Stage::value_weights()
  const float* x;              // the input of values, n_rows rows
  int64_t x_stride;
  std::span<const KvRow> rows;
  std::span<const int32_t> slots;  // one per row
  int64_t n_slots;                 // of the cache, a multiple of 16
  const AttendArgs& attended;
};

class Observer {
 public:
  virtual ~Observer() = default;
  // Called when a context begins to observe. The result is held until it ends. Throws ShapeError if
  // the observer belongs to another stage, or cannot begin with this cache.
  virtual std::shared_ptr<const void> attach(const Stage&, const KvCache&) = 0;
  // Called by every thread of the team.
  virtual void input(Team&, const MatrixInput&) = 0;
  virtual void attention(Team&, const AttentionInput&) = 0;
};

}  // namespace pyflow
