// What a block is, and the list of kinds. One file per kind in blocks/.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
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

inline constexpr size_t kRegisters = 2;

// Up to this many rows are computed by every thread for itself where only matrices and attention
// are worth sharing: a norm of a row costs less than a barrier.
inline constexpr int64_t kOwnRows = 4;

// One step's data as the blocks of one thread see it. Rows are tokens; all memory belongs to the
// context.
struct Step {
  const KernelTable& kernels;
  Regime regime;
  size_t copy;  // of the weights, near this thread
  int64_t n_rows;
  int64_t first_row;                         // its number among the pending rows of the cache
  int64_t stride;                            // floats between rows of a register
  std::span<const int32_t> tokens;           // empty on a stage without embedding
  bool own_rows;                             // few rows: what is done row by row, each thread does
  std::array<float*, kRegisters> registers;  // x, h: where they are now
  std::array<float*, kRegisters> shared;     // written by products, and by rows if they are shared
  std::array<float*, kRegisters> own;        // of this thread: written by rows if they are not
  std::vector<const float*> ropes;           // per RopeSpec: n_rows x (cosines, sines)
  std::vector<int64_t> rope_pairs;           // per RopeSpec
  std::span<const uint8_t> rope_interleaved;
  KvCache* kv;
  float* temp;     // n_batch x floats_per_row
  ActBlock* acts;  // rows of up to max_k, of this thread or shared as the rows are
  float* partials;
  int64_t partial_capacity;  // floats in partials

  // Where a register is to be written, by a product or row by row; it is found there from then on.
  float* product_output(size_t r) { return registers[r] = shared[r]; }
  float* row_output(size_t r) { return registers[r] = own_rows ? own[r] : shared[r]; }
};

// body(begin, end) over all rows: shared by the team, with a barrier at the end, or by each thread
// for itself.
template <class Body>
void each_row(const Step& s, Team& team, int64_t n_rows, Body&& body) {
  if (s.own_rows)
    body(int64_t{0}, n_rows);
  else
    team.for_each(n_rows, std::max<int64_t>(1, n_rows / (4 * team.size())), body);
}

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

inline int64_t padded(int64_t n) { return (n + kTileRows - 1) / kTileRows * kTileRows; }

// --- what matrix blocks share (linear.cpp) ---

struct Product {
  const PackedTensor* weight;
  float* y;
  int64_t y_stride;
};

// Quantizes n_rows of x for the products that follow; needed once per input.
void quantize_rows(Step&, Team&, const float* x, int64_t stride, int64_t n_rows, int64_t k);
// y = W x for several matrices over the same input, in one shared loop.
void multiply(Step&, Team&, std::span<const Product>, const float* x, int64_t x_stride,
              int64_t n_rows);
// The same for matrices of one height, whose tiles are computed side by side: as soon as those of
// some rows are there, after(row, column, columns) may work on each row's new values.
using AfterTiles = std::function<void(int64_t row, int64_t column, int64_t columns)>;
void multiply(Step&, Team&, std::span<const Product>, const float* x, int64_t x_stride,
              int64_t n_rows, const AfterTiles& after);

}  // namespace pyflow
