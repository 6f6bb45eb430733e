#include "device/ops.h"

#include <algorithm>

#include "quant/packed_tensor.h"

namespace pyflow::device {
namespace {

constexpr int64_t kSpanBlocks = kLogicalSpan / kLogicalBlock;
// Groups that a compute unit needs to hide the latency of memory.
constexpr int64_t kGroupsPerUnit = 8;

// A group of matmul_units.dev; fewer rows are faster without it.
constexpr int64_t kTilesOfUnits = 4, kItemsOfUnits = 256, kFewestRowsOfUnits = 25;

// Groups that any device has along the second and the third axis.
constexpr int64_t kMostGroups = 65'535;

int32_t i32(int64_t x) { return static_cast<int32_t>(x); }
int64_t blocks(int64_t n, int64_t size) { return (n + size - 1) / size; }

std::vector<Argument> joined(std::initializer_list<std::vector<Argument>> lists) {
  std::vector<Argument> all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}
std::vector<Argument> list(const FloatRows& rows) { return {rows.buffer, rows.first, rows.stride}; }
std::vector<Argument> list_or_none(const FloatRows& rows) {
  return {rows.buffer ? Argument(rows.buffer) : Argument(nullptr), rows.first, rows.stride};
}
// Of a product with one matrix.
const std::vector<Argument> kNoChoice = {nullptr, int64_t{0}, int64_t{0}, int32_t{1}};

}  // namespace

void Ops::run(Queue& queue, const std::string& name, const Grid& grid, const Arguments& arguments) {
  auto& kernel = kernels_[name];
  if (!kernel) kernel = compiled_.program->kernel(name);
  queue.launch(*kernel, grid, arguments);
}

// For kernels with a work-item per number: the last argument is n.
void Ops::run_rows(Queue& queue, const char* kernel, int64_t n_rows, int64_t n,
                   Arguments arguments) {
  arguments.push_back(i32(n));
  run(queue, kernel, {{n_rows, blocks(n, 64), 1}, 64}, arguments);
}

// The kernel for so many rows.
ProductKernel Ops::product(const DeviceMatrix& w, int64_t n_rows) const {
  const auto kernels = product_kernels(w.dtype, compiled_.slices, compiled_.matrix_units);
  if (n_rows <= kernels[0].rows) return kernels[0];
  return n_rows < kFewestRowsOfUnits ? kernels[1] : kernels.back();
}

void Ops::matmul(Queue& queue, const DeviceMatrix& w, const DeviceBuffer& acts, int64_t n_rows,
                 FloatRows y) {
  const bool pairs = fine_inputs(w.dtype);
  const int64_t rows = pairs ? 2 * n_rows : n_rows, tiles = PackedTensor::tile_count(w.rows);
  const ProductKernel kernel = product(w, rows);
  const int64_t row_groups = blocks(rows, kernel.rows);
  const Arguments matrix = {w.tiles, i32(blocks(w.cols, kActBlock))},
                  inputs = {&acts, i32(rows), i32(pairs)};
  if (kernel.units)
    run(queue, kernel.name, {{blocks(tiles, kTilesOfUnits), row_groups, 1}, kItemsOfUnits},
        joined({matrix, {i32(tiles)}, inputs, list(y)}));
  else
    run(queue, kernel.name, {{tiles, row_groups, 1}, 16 * compiled_.slices},
        joined({matrix, inputs, list(y), kNoChoice}));
}

void Ops::matmul(Queue& queue, const DeviceMatrix& w, const DeviceBuffer& acts, const Chosen& of,
                 FloatRows y) {
  const bool pairs = fine_inputs(w.dtype);
  const int64_t rows = pairs ? 2 : 1;
  run(queue, product(w, rows).name,
      {{PackedTensor::tile_count(w.rows), 1, of.n_slots}, 16 * compiled_.slices},
      joined({{w.tiles, i32(blocks(w.cols, kActBlock)), &acts, i32(rows), i32(pairs)},
              list(y),
              {of.chosen.buffer, of.chosen.first, of.matrix_nbytes, i32(of.sharing)}}));
}

void Ops::matmul(Queue& queue, const DeviceMatrix& w, FloatRows x, int64_t n_rows, FloatRows y) {
  const ProductKernel kernel = product(w, n_rows);
  const int64_t tiles = PackedTensor::tile_count(w.rows);
  const auto tile_bytes =
      static_cast<int64_t>(PackedTensor::packed_bytes(w.dtype, w.rows, w.cols)) / tiles;
  run(queue, kernel.name, {{blocks(tiles, 4), blocks(n_rows, kernel.rows), 1}, 64},
      joined({{w.tiles, tile_bytes, i32(tiles), i32(w.cols)},
              list(x),
              {i32(n_rows)},
              list(y),
              kNoChoice}));
}

void Ops::matmul(Queue& queue, const DeviceMatrix& w, FloatRows x, const Chosen& of, FloatRows y) {
  const int64_t tiles = PackedTensor::tile_count(w.rows);
  const auto tile_bytes =
      static_cast<int64_t>(PackedTensor::packed_bytes(w.dtype, w.rows, w.cols)) / tiles;
  run(queue, product(w, 1).name, {{blocks(tiles, 4), 1, of.n_slots}, 64},
      joined({{w.tiles, tile_bytes, i32(tiles), i32(w.cols)},
              list(x),
              {i32(1)},
              list(y),
              {of.chosen.buffer, of.chosen.first, of.matrix_nbytes, i32(of.sharing)}}));
}

void Ops::quantize(Queue& queue, FloatRows x, int64_t n_rows, int64_t k, DeviceBuffer& acts,
                   bool pairs) {
  run(queue, "quantize", {{n_rows, blocks(k, kActBlock), 1}, 64},
      joined({list(x), {i32(k), &acts, i32(pairs)}}));
}

void Ops::rms_norm(Queue& queue, FloatRows x, const DeviceBuffer& weight, float eps, int64_t n_rows,
                   int64_t n, FloatRows y) {
  run(queue, "rms_norm", {{n_rows, 1, 1}, 64}, joined({list(x), {&weight, eps, i32(n)}, list(y)}));
}
void Ops::layer_norm(Queue& queue, FloatRows x, const DeviceBuffer& weight, float eps,
                     int64_t n_rows, int64_t n, FloatRows y) {
  run(queue, "layer_norm", {{n_rows, 1, 1}, 64},
      joined({list(x), {&weight, eps, i32(n)}, list(y)}));
}
void Ops::add(Queue& queue, FloatRows x, FloatRows y, int64_t n_rows, int64_t n) {
  run_rows(queue, "add", n_rows, n, joined({list(x), list(y)}));
}
void Ops::add_scaled(Queue& queue, FloatRows x, FloatRows y, float s, int64_t n_rows, int64_t n) {
  run_rows(queue, "add_scaled", n_rows, n, joined({list(x), list(y), {s}}));
}
void Ops::scale(Queue& queue, FloatRows x, float s, int64_t n_rows, int64_t n) {
  run_rows(queue, "scale", n_rows, n, joined({list(x), {s}}));
}
void Ops::softcap(Queue& queue, FloatRows x, float cap, int64_t n_rows, int64_t n) {
  run_rows(queue, "softcap", n_rows, n, joined({list(x), {cap}}));
}
void Ops::activate(Queue& queue, Activation activation, FloatRows x, int64_t n_rows, int64_t n) {
  run_rows(queue, "activate", n_rows, n, joined({list(x), {static_cast<int32_t>(activation)}}));
}
void Ops::gate(Queue& queue, Activation activation, FloatRows gate, FloatRows up, int64_t n_rows,
               int64_t n) {
  run_rows(queue, "gate", n_rows, n,
           joined({list(gate), list(up), {static_cast<int32_t>(activation)}}));
}
void Ops::rope(Queue& queue, FloatRows x, FloatRows cos_sin, const Rope& how, int64_t n_rows) {
  run(queue, "rope", {{n_rows, how.n_heads, 1}, 64},
      joined(
          {list(x), {i32(how.head_dim)}, list(cos_sin), {i32(how.n_pairs), i32(how.interleaved)}}));
}

void Ops::copy_heads(Queue& queue, FloatRows x, int64_t from_dim, FloatRows y, int64_t to_dim,
                     int64_t n_rows, int64_t n_heads) {
  run(queue, "copy_heads", {{n_rows, n_heads, 1}, 64},
      joined({list(x), {i32(from_dim)}, list(y), {i32(to_dim)}}));
}

void Ops::take_rows(Queue& queue, FloatRows x, FloatRows from, FloatRows y, int64_t n_rows,
                    int64_t n) {
  run_rows(queue, "take_rows", n_rows, n, joined({list(x), {from.buffer, from.first}, list(y)}));
}
void Ops::weighted_rows(Queue& queue, FloatRows x, const Weighted& of, int64_t n_rows, int64_t n) {
  run_rows(queue, "weighted_rows", n_rows, n,
           joined({list(x),
                   list(of.y),
                   {of.slots.buffer, of.slots.first, of.weights.buffer, of.weights.first,
                    i32(of.n_slots)},
                   list_or_none(of.last),
                   {list_or_none(of.last_weights)[0], of.last_weights.first}}));
}
void Ops::choose(Queue& queue, const Choice& how, FloatRows logits, FloatRows shared,
                 const Experts& to, int64_t n_rows) {
  run(queue, "choose_experts", {{blocks(n_rows, 64), 1, 1}, 64},
      joined({list(logits),
              {i32(how.n_experts), i32(how.top_k), i32(how.normalize), how.scale},
              list_or_none(shared),
              {to.chosen.buffer, to.chosen.first, to.weights.buffer, to.weights.first,
               to.shared_weights.buffer, to.shared_weights.first, i32(n_rows)}}));
}

void Ops::store_keys(Queue& queue, const DeviceCells& cells, const DeviceBuffer& slots,
                     int64_t n_rows, FloatRows k) {
  run(queue, "store_keys", {{n_rows, blocks(cells.key_dim, 32), cells.n_kv_heads}, 32},
      joined({{cells.k, i32(cells.type == CacheType::Q8_0), i32(cells.n_kv_heads),
               i32(cells.key_dim), &slots},
              list(k)}));
}
void Ops::store_cells(Queue& queue, const DeviceCells& cells, const DeviceBuffer& slots,
                      int64_t n_rows, FloatRows k, FloatRows v) {
  store_keys(queue, cells, slots, n_rows, k);
  run(queue, "store_values", {{n_rows, blocks(cells.value_dim, 32), cells.n_kv_heads}, 32},
      joined({{cells.v, i32(cells.type == CacheType::Q8_0), i32(cells.n_kv_heads),
               i32(cells.value_dim), &slots},
              list(v)}));
}
void Ops::load_keys(Queue& queue, const DeviceCells& cells, const DeviceBuffer& slots,
                    int64_t n_rows, FloatRows k) {
  run(queue, "load_keys", {{n_rows, blocks(cells.key_dim, 32), cells.n_kv_heads}, 32},
      joined({{cells.k, i32(cells.type == CacheType::Q8_0), i32(cells.n_kv_heads),
               i32(cells.key_dim), &slots},
              list(k)}));
}
void Ops::move_cells(Queue& queue, const DeviceCells& cells, const DeviceBuffer& moves,
                     int64_t n_moves) {
  run(queue, "move_cells",
      {{blocks(std::max(cells.key_dim, cells.value_dim), 32), cells.n_kv_heads, 1}, 32},
      {cells.k, cells.v, i32(cells.type == CacheType::Q8_0), i32(cells.n_kv_heads),
       i32(cells.key_dim), i32(cells.value_dim), &moves, i32(n_moves)});
}

size_t Ops::scratch_nbytes(const DeviceAttention& args) {
  return static_cast<size_t>(args.n_heads * args.most_blocks * (args.cells.value_dim + 2)) *
         sizeof(float);
}

// Parts are blocks where spans would be too few groups. As many rows at once as scratch holds.
void Ops::attend(Queue& queue, const DeviceAttention& args) {
  const DeviceCells& cells = args.cells;
  const int64_t groups = args.n_rows * args.n_heads * args.most_spans;
  const bool by_spans = args.parts == Parts::Auto
                            ? groups >= kGroupsPerUnit * device().info().compute_units
                            : args.parts == Parts::Spans;
  const int64_t n_blocks = by_spans ? kSpanBlocks : 1;
  const int64_t n_parts = std::max<int64_t>(1, by_spans ? args.most_spans : args.most_blocks);
  const auto row_nbytes =
      static_cast<size_t>(args.n_heads * n_parts * (cells.value_dim + 2)) * sizeof(float);
  const auto step = std::clamp<int64_t>(static_cast<int64_t>(args.scratch->nbytes() / row_nbytes),
                                        1, kMostGroups);
  const Argument slopes = args.slopes ? Argument(args.slopes) : Argument(nullptr),
                 sinks = args.sinks ? Argument(args.sinks) : Argument(nullptr);
  for (int64_t row = 0; row < args.n_rows; row += step) {
    const int64_t n = std::min(step, args.n_rows - row);
    run(queue, "attend_parts", {{n_parts, args.n_heads, n}, kLogicalBlock},
        joined({{cells.k, cells.v, i32(cells.type == CacheType::Q8_0), i32(cells.n_kv_heads),
                 i32(cells.key_dim), i32(cells.value_dim)},
                list(args.q),
                {args.views, args.runs, i32(row), i32(n_blocks), args.scale, args.softcap, slopes,
                 args.scratch}}));
    run(queue, "attend_merge", {{args.n_heads, n, 1}, 64},
        joined({{args.scratch, i32(n_parts), i32(cells.value_dim), args.views, i32(row),
                 i32(n_blocks), sinks},
                list(args.out)}));
  }
}

void Ops::read_bytes(Queue& queue, const DeviceBuffer& from, int64_t nbytes, DeviceBuffer& sums,
                     int64_t n_groups) {
  run(queue, "read_bytes", {{n_groups, 1, 1}, 64}, {&from, nbytes / 16, &sums});
}
void Ops::nothing(Queue& queue, DeviceBuffer& any) {
  run(queue, "nothing", {{1, 1, 1}, 64}, {&any});
}
void Ops::arithmetic(Queue& queue, const DeviceBuffer& x, DeviceBuffer& y, DeviceBuffer& halves,
                     int64_t n) {
  run(queue, "arithmetic", {{blocks(n, 64), 1, 1}, 64}, {&x, &y, &halves, i32(n)});
}

}  // namespace pyflow::device
