// What a block is, and the list of kinds. One file per kind in blocks/.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/table.h"
#include "kv/kv_cache.h"
#include "model/spec.h"
#include "model/weights.h"

namespace pyflow {

// Scratch that one step needs, per row of the largest batch.
struct ScratchNeeds {
  int64_t floats_per_row = 0;  // shared by all blocks, one after the other
  int64_t max_k = 0;           // longest row that is quantized
  int64_t partial_floats = 0;  // attention partials of one row and span, all heads
  void at_least(const ScratchNeeds& o) {
    floats_per_row = std::max(floats_per_row, o.floats_per_row);
    max_k = std::max(max_k, o.max_k);
    partial_floats = std::max(partial_floats, o.partial_floats);
  }
};

// One step's data as the blocks see it. Rows are tokens; all pointers belong to the context.
struct Step {
  const KernelTable& kernels;
  Regime regime;
  int64_t n_rows;
  int64_t stride;                   // floats between rows of a register
  std::span<const int32_t> tokens;  // empty on a stage without embedding
  std::vector<float*> registers;    // x, h
  std::vector<const float*> ropes;  // per RopeSpec: n_rows x (cosines, sines)
  std::vector<int64_t> rope_pairs;  // per RopeSpec
  std::span<const uint8_t> rope_interleaved;
  KvCache* kv;
  float* temp;     // n_batch x floats_per_row
  ActBlock* acts;  // n_batch rows of up to max_k
  float* partials;
  int64_t partial_capacity;  // floats in partials
};

class Block {
 public:
  virtual ~Block() = default;
  virtual ScratchNeeds needs() const = 0;
  // Called by every thread of the team; ends with all rows of its output register written.
  virtual void forward(Step&, Team&) const = 0;
};

struct BlockContext {
  const StageSpec& stage;
  Weights& weights;
  std::vector<LayerKv>& kv_layers;  // a block that caches appends its layer
  std::vector<size_t>& kv_ropes;    // and the rope that its keys carry
};

// Throws UnsupportedError for an unknown kind, ShapeError for parameters that do not fit.
std::unique_ptr<Block> make_block(const BlockSpec&, BlockContext&);

// 0 for "x", 1 for "h".
size_t register_index(const std::string& name);
inline constexpr size_t kRegisters = 2;

inline int64_t padded(int64_t n) { return (n + kTileRows - 1) / kTileRows * kTileRows; }

// --- what matrix blocks share (linear.cpp) ---

struct Product {
  const PackedTensor* weight;
  float* y;
  int64_t y_stride;
};

// Quantizes n_rows of x for the products that follow; needed once per input, and only when one of
// the weights is quantized.
void quantize_rows(Step&, Team&, const float* x, int64_t stride, int64_t n_rows, int64_t k);
// y = W x for several matrices over the same input, in one shared loop.
void multiply(Step&, Team&, std::span<const Product>, const float* x, int64_t x_stride,
              int64_t n_rows);

}  // namespace pyflow
