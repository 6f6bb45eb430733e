// What a block is, and the list of kinds. One file per kind in blocks/.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "kernels/table.h"
#include "kv/kv_cache.h"
#include "model/spec.h"
#include "model/weights.h"

namespace pyflow {

// Scratch that one step needs, per row of the largest batch.
struct ScratchNeeds {
  int64_t floats_per_row = 0;      // shared by all blocks, one after the other
  int64_t row_floats_per_row = 0;  // the same of what is computed row by row
  int64_t act_blocks_per_row = 0;  // of quantized rows
  int64_t partial_floats = 0;      // attention partials of one row and span, all heads
  size_t n_registers = 2;
  void at_least(const ScratchNeeds& o) {
    floats_per_row = std::max(floats_per_row, o.floats_per_row);
    row_floats_per_row = std::max(row_floats_per_row, o.row_floats_per_row);
    act_blocks_per_row = std::max(act_blocks_per_row, o.act_blocks_per_row);
    partial_floats = std::max(partial_floats, o.partial_floats);
    n_registers = std::max(n_registers, o.n_registers);
  }
};

inline constexpr size_t kRegisters = 3;

// Up to this many rows are computed by every thread for itself where only matrices and attention
// are worth sharing: a norm of a row costs less than a barrier.
inline constexpr int64_t kOwnRows = 4;

class InputSquares;

// One step's data as the blocks of one thread see it. Rows are tokens; all memory belongs to the
// context.
struct Step {
  const KernelTable& kernels;
  Regime regime;
  size_t copy;  // of the weights, near this thread
  int64_t n_rows;
  int64_t first_row;                // its number among the pending rows of the cache
  int64_t stride;                   // floats between rows of a register
  std::span<const int32_t> tokens;  // empty on a stage without embedding
  std::span<const KvRow> rows;
  bool own_rows;                             // few rows: what is done row by row, each thread does
  std::array<float*, kRegisters> registers;  // x, h, a: where they are now
  std::array<float*, kRegisters> shared;     // written by products, and by rows if they are shared
  std::array<float*, kRegisters> own;        // of this thread: written by rows if they are not
  std::vector<const float*> ropes;           // per RopeSpec: n_rows x (cosines, sines)
  std::vector<int64_t> rope_pairs;           // per RopeSpec
  std::span<const uint8_t> rope_interleaved;
  KvCache* kv;
  float* temp;      // n_batch x floats_per_row
  float* row_temp;  // n_batch x row_floats_per_row, of this thread or shared as the rows are
  ActBlock* acts;   // n_batch x act_blocks_per_row, likewise
  // Pairs of rows whose sums they are (fine_inputs in quant/packed_tensor.h), 2 n_batch rows; null
  // where no matrix takes them.
  ActBlock* pairs;
  float* partials;
  int64_t partial_capacity;     // floats in partials
  InputSquares* input_squares;  // where inputs of matrices are to be added; null: nowhere

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

// What blocks tell of themselves when they are made.
struct BlockFacts {
  std::vector<LayerKv> kv_layers;               // of blocks that cache
  std::vector<std::optional<size_t>> kv_ropes;  // the rope that the keys of each carry
  bool relative = false;                        // some of them know how far apart positions are
  std::set<const PackedTensor*> occasional;     // a token needs nothing of these, or one row
  int64_t n_positions = std::numeric_limits<int64_t>::max();  // that have a row in a table
};

struct BlockContext {
  const StageSpec& stage;
  Weights& weights;
  BlockFacts& facts;
};

// Throws UnsupportedError for an unknown kind, ShapeError for parameters that do not fit.
std::unique_ptr<Block> make_block(const BlockSpec&, BlockContext&);

// 0 for "x", 1 for "h", 2 for "a".
size_t register_index(const std::string& name);

inline int64_t padded(int64_t n) { return (n + kTileRows - 1) / kTileRows * kTileRows; }
inline int64_t act_blocks(int64_t k) { return (k + kActBlock - 1) / kActBlock; }

// --- what matrix blocks share (linear.cpp) ---

struct Product {
  const PackedTensor* weight;
  float* y;
  int64_t y_stride;
};

// Quantizes n_rows of x for the products that follow; needed once per input.
void quantize_rows(Step&, Team&, const float* x, int64_t stride, int64_t n_rows, int64_t k);
// The same of one row into row r of n_rows at `acts`.
void quantize_row(const Step&, const float* x, int64_t k, ActBlock* acts, int64_t r,
                  int64_t n_rows);
// Adds what matrices are multiplied by to step.input_squares, if there are any.
void observe(Step&, Team&, std::span<const Product>, const float* x, int64_t x_stride,
             int64_t n_rows);
// y = W x for several matrices over the same input, in one shared loop, by pairs where one takes
// them. Observes the input; the following do both, too, but for jobs.
void multiply(Step&, Team&, std::span<const Product>, const float* x, int64_t x_stride,
              int64_t n_rows);
// The same for matrices of one height, whose tiles are computed side by side: as soon as those of
// some rows are there, after(row, column, columns) may work on each row's new values.
using AfterTiles = std::function<void(int64_t row, int64_t column, int64_t columns)>;
void multiply(Step&, Team&, std::span<const Product>, const float* x, int64_t x_stride,
              int64_t n_rows, const AfterTiles& after);
// y = W x + bias; null: none.
void multiply(Step&, Team&, const Product&, const float* bias, const float* x, int64_t x_stride,
              int64_t n_rows);

// Rows of an input that meet matrices of their own, up to two of one height.
struct Job {
  std::array<Product, 2> products;
  size_t n_products;
  const float* x;
  int64_t x_stride;
  const ActBlock* acts;  // of these rows alone
  int64_t n_rows;
};
using JobAt = std::function<Job(size_t)>;
using AfterJobTiles = std::function<void(size_t job, int64_t row, int64_t column, int64_t columns)>;
// All jobs in one shared loop; `after` as above, perhaps none.
void multiply(Step&, Team&, size_t n_jobs, const JobAt& at, const AfterJobTiles& after);

}  // namespace pyflow
