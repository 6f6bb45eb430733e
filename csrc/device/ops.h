// The operations of the kernel table (kernels/table.h) as commands of a device, with the bits of
// the scalar table. Each call puts a command on a queue; nothing is checked here, as in kernels.
//
// Weights lie on the device as the tiles of a PackedTensor, byte for byte, cells as table.h draws
// them. Quantized rows are ActBlocks row by row: block kb of row r is at r * ceil(k / 64) + kb.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/dtype.h"
#include "device/device.h"
#include "device/program/compile.h"
#include "device/program/formats.h"
#include "device/views.h"
#include "kernels/choice.h"
#include "kernels/table.h"

namespace pyflow::device {

// Rows of f32: row r begins at float first + r * stride of a buffer.
struct FloatRows {
  DeviceBuffer* buffer;
  int64_t first;
  int64_t stride;
};

struct DeviceMatrix {
  const DeviceBuffer* tiles;
  DType dtype;
  int64_t rows, cols;
};

// One layer's cells: KvView of kernels/table.h on the device.
struct DeviceCells {
  DeviceBuffer* k;
  DeviceBuffer* v;
  CacheType type;
  int64_t n_kv_heads, key_dim, value_dim;
  std::pair<int64_t, int64_t> dims() const { return {key_dim, value_dim}; }
};

// What a group of work-items computes of a row: a block or a span of positions, or what keeps the
// device busier. The bits are the same.
enum class Parts : uint8_t { Auto, Blocks, Spans };

struct DeviceAttention {
  DeviceCells cells;
  FloatRows q, out;                 // n_heads x key_dim, n_heads x value_dim
  const DeviceBuffer* views;        // View of each row (views.h)
  const DeviceBuffer* runs;         // ViewRun
  int64_t most_blocks, most_spans;  // as ViewTable has them
  int64_t n_rows, n_heads;
  float scale, softcap;
  const DeviceBuffer* slopes;           // n_heads floats, or null
  const DeviceBuffer* sinks = nullptr;  // the same
  DeviceBuffer* scratch;                // at least scratch_nbytes(); more make fewer commands
  Parts parts = Parts::Auto;
};

class Ops {
 public:
  // Kernels are taken from it when they are first needed.
  explicit Ops(Compiled compiled) : compiled_(std::move(compiled)) {}

  Device& device() const { return *compiled_.device; }

  // y[r] = W . x[r] for n_rows rows; whole tiles are written, 16 floats each. For blocks: from
  // rows that quantize() wrote, pairs if fine_inputs(dtype); with float_inputs(dtype): from floats.
  void matmul(Queue& queue, const DeviceMatrix& w, const DeviceBuffer& acts, int64_t n_rows,
              FloatRows y);
  void matmul(Queue& queue, const DeviceMatrix& w, FloatRows x, int64_t n_rows, FloatRows y);

  // y[i] = W x[i / sharing] for each slot i, where W is the matrix chosen[i] (int32) of several that
  // follow w, so many bytes apart.
  struct Chosen {
    FloatRows chosen;
    int64_t n_slots, matrix_nbytes, sharing;
  };
  void matmul(Queue& queue, const DeviceMatrix& w, const DeviceBuffer& acts, const Chosen& of,
              FloatRows y);
  void matmul(Queue& queue, const DeviceMatrix& w, FloatRows x, const Chosen& of, FloatRows y);

  // Blocks that rows of k floats become: twice as many with pairs, where row 2r and 2r + 1 are the
  // coarse and the fine part of row r.
  static int64_t act_blocks(int64_t n_rows, int64_t k, bool pairs) {
    return (pairs ? 2 : 1) * n_rows * ((k + kActBlock - 1) / kActBlock);
  }
  void quantize(Queue& queue, FloatRows x, int64_t n_rows, int64_t k, DeviceBuffer& acts,
                bool pairs);

  void rms_norm(Queue& queue, FloatRows x, const DeviceBuffer& weight, float eps, int64_t n_rows,
                int64_t n, FloatRows y);
  void layer_norm(Queue& queue, FloatRows x, const DeviceBuffer& weight, float eps, int64_t n_rows,
                  int64_t n, FloatRows y);
  // A stride of 0 gives all rows the same y.
  void add(Queue& queue, FloatRows x, FloatRows y, int64_t n_rows, int64_t n);
  void add_scaled(Queue& queue, FloatRows x, FloatRows y, float s, int64_t n_rows, int64_t n);
  void scale(Queue& queue, FloatRows x, float s, int64_t n_rows, int64_t n);
  void softcap(Queue& queue, FloatRows x, float cap, int64_t n_rows, int64_t n);
  void activate(Queue& queue, Activation activation, FloatRows x, int64_t n_rows, int64_t n);
  void gate(Queue& queue, Activation activation, FloatRows gate, FloatRows up, int64_t n_rows,
            int64_t n);
  // cos_sin: row r has n_pairs cosines, then n_pairs sines.
  struct Rope {
    int64_t n_heads, head_dim, n_pairs;
    bool interleaved;
  };
  void rope(Queue& queue, FloatRows x, FloatRows cos_sin, const Rope& how, int64_t n_rows);

  // Heads of from_dim to heads of to_dim floats, cut or filled up with zeros.
  void copy_heads(Queue& queue, FloatRows x, int64_t from_dim, FloatRows y, int64_t to_dim,
                  int64_t n_rows, int64_t n_heads);

  // Row r becomes row from[r] of x; from: int32, from a float's place on.
  void take_rows(Queue& queue, FloatRows x, FloatRows from, FloatRows y, int64_t n_rows, int64_t n);
  // Row r becomes the sum of rows slots[r * n_slots ...] of y, each times its weight, and of row r
  // of last, if it has a buffer: the first product is rounded, the others are fused, in order.
  struct Weighted {
    FloatRows y, slots, weights;  // slots: int32
    int64_t n_slots;
    FloatRows last, last_weights;
  };
  void weighted_rows(Queue& queue, FloatRows x, const Weighted& of, int64_t n_rows, int64_t n);

  // choose() of kernels/choice.h and the sigmoid of `shared`, if it has a buffer, for each row, on
  // devices that have f64. chosen: int32, row by row, as weights.
  struct Experts {
    FloatRows chosen, weights, shared_weights;
  };
  void choose(Queue& queue, const Choice& how, FloatRows logits, FloatRows shared,
              const Experts& to, int64_t n_rows);

  // Row r of k and v, all heads, to the cell slots[r]; slots: n_rows int32.
  void store_cells(Queue& queue, const DeviceCells& cells, const DeviceBuffer& slots,
                   int64_t n_rows, FloatRows k, FloatRows v);
  void store_keys(Queue& queue, const DeviceCells& cells, const DeviceBuffer& slots, int64_t n_rows,
                  FloatRows k);
  void load_keys(Queue& queue, const DeviceCells& cells, const DeviceBuffer& slots, int64_t n_rows,
                 FloatRows k);
  // moves: pairs of slots, from and to, int32, in this order.
  void move_cells(Queue& queue, const DeviceCells& cells, const DeviceBuffer& moves,
                  int64_t n_moves);

  void attend(Queue& queue, const DeviceAttention& args);
  // For one row at a time.
  static size_t scratch_nbytes(const DeviceAttention& args);

  // Reads nbytes, a multiple of 16, by n_groups groups; sums: 64 * n_groups uint32.
  void read_bytes(Queue& queue, const DeviceBuffer& from, int64_t nbytes, DeviceBuffer& sums,
                  int64_t n_groups);
  void nothing(Queue& queue, DeviceBuffer& any);
  // x: n floats a, then n b and n c. y: n times a * b + c with two roundings, fma(a, b, c), a / b,
  // the root of a, b as f16; halves: n f16.
  void arithmetic(Queue& queue, const DeviceBuffer& x, DeviceBuffer& y, DeviceBuffer& halves,
                  int64_t n);

 private:
  using Arguments = std::vector<Argument>;
  void run(Queue& queue, const std::string& kernel, const Grid& grid, const Arguments& arguments);
  void run_rows(Queue& queue, const char* kernel, int64_t n_rows, int64_t n, Arguments arguments);
  ProductKernel product(const DeviceMatrix& w, int64_t n_rows) const;

  Compiled compiled_;
  std::map<std::string, std::unique_ptr<Kernel>> kernels_;
};

}  // namespace pyflow::device
