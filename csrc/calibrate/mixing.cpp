#include "calibrate/mixing.h"

#include <algorithm>
#include <vector>

namespace pyflow {
namespace {

// Sample 16 consecutive rows of every 64: neighbouring positions have nearly equal attention.
constexpr int64_t kSampled = 16, kPeriod = 64;
constexpr int64_t kRowTile = 16;  // rows of one call of the kernel, at most

// Sizes, in floats, and where things lie in the memory that layers share.
struct Layout {
  int64_t n_slots, n_kv_heads, dim, n_heads, n_rows;  // dim: of a cell's values
  int64_t n_slices;                                   // of dim columns, the last one padded
  float* memory;

  Layout(const AttentionInput& in, float* shared)
      : n_slots(in.n_slots),
        n_kv_heads(in.attended.kv.n_kv_heads),
        dim(in.attended.kv.value_dim),
        n_heads(in.attended.n_heads),
        n_rows(std::ssize(in.rows)),
        n_slices((in.values.cols() + dim - 1) / dim),
        memory(shared) {}

  int64_t q_dim() const { return n_heads * dim; }
  int64_t width() const { return n_slices * dim; }
  int64_t group() const { return n_heads / n_kv_heads; }
  int64_t cache_floats() const { return n_slots * n_kv_heads * dim; }
  int64_t own_floats() const { return n_slots * width(); }
  int64_t shared_floats() const {
    return 2 * cache_floats() + n_rows * (q_dim() + n_heads * width());
  }
  // A cache of one slice: keys that nobody reads, and the slice as values.
  float* keys() const { return memory; }
  float* values() const { return memory + cache_floats(); }
  // One slice of the mixes, by row; the mixes, by row and query head.
  float* slice() const { return values() + cache_floats(); }
  float* mixes() const { return slice() + n_rows * q_dim(); }
};

// Sampled rows that follow one another.
struct Run {
  int64_t row, n;
  int64_t number;  // of the first one among all sampled rows
};

std::vector<Run> sampled(std::span<const KvRow> rows) {
  std::vector<Run> runs;
  int64_t n_sampled = 0;
  for (int64_t r = 0; r < std::ssize(rows); ++r) {
    if (rows[static_cast<size_t>(r)].position % kPeriod >= kSampled) continue;
    if (runs.empty() || runs.back().row + runs.back().n < r || runs.back().n == kRowTile)
      runs.push_back({r, 0, n_sampled});
    ++runs.back().n;
    ++n_sampled;
  }
  return runs;
}

void grow(Buffer& buffer, int64_t floats) {
  const size_t nbytes = static_cast<size_t>(floats) * sizeof(float);
  if (buffer.size() >= nbytes) return;
  buffer = {};
  buffer = Buffer(nbytes, "inputs of attention");
}

// Writes slice i of all slots into the cache.
void store_slice(Team& team, const Layout& at, const float* inputs, int64_t i, KvView cache,
                 const KernelTable& kernels) {
  cache.k = reinterpret_cast<uint8_t*>(at.keys());
  cache.key_dim = cache.value_dim;  // store_kv writes the slice as keys too
  team.for_each(at.n_slots / 16, 1, [&](int64_t begin, int64_t end) {
    for (int64_t slot = 16 * begin; slot < 16 * end; ++slot)
      for (int64_t h = 0; h < at.n_kv_heads; ++h) {
        const float* slice = inputs + slot * at.width() + i * at.dim;
        kernels.store_kv(cache, slot, h, slice, slice);
      }
  });
}

// Mixes slice i for the runs.
void mix_slice(Team& team, const Layout& at, std::span<const Run> runs, int64_t i,
               const AttendArgs& args, const KernelTable& kernels) {
  team.for_each(std::ssize(runs) * at.n_kv_heads, 1, [&](int64_t begin, int64_t end) {
    for (int64_t j = begin; j < end; ++j) {
      const Run& run = runs[static_cast<size_t>(j / at.n_kv_heads)];
      const int64_t head = j % at.n_kv_heads, dim = at.dim;
      AttendArgs part = args;
      part.q += run.row * args.q_stride;
      part.views += run.row;
      part.out = at.slice() + run.number * at.q_dim();
      part.out_stride = at.q_dim();
      kernels.attend(part, 0, run.n, head);
      for (int64_t r = 0; r < run.n; ++r)
        for (int64_t h = head * at.group(); h < (head + 1) * at.group(); ++h)
          std::copy_n(part.out + r * at.q_dim() + h * dim, dim,
                      at.mixes() + ((run.number + r) * at.n_heads + h) * at.width() + i * dim);
    }
  });
}

}  // namespace

void Mixing::reserve(const AttentionInput& in) {
  const Layout sizes(in, nullptr);
  grow(inputs_[&in.values], sizes.own_floats());
  grow(shared_, sizes.shared_floats());
}

MatrixInput Mixing::mix(Team& team, const AttentionInput& in, const KernelTable& kernels) const {
  const Layout at(in, shared_.as<float>());
  float* const inputs = inputs_.at(&in.values).as<float>();
  team.for_each(at.n_rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      std::copy_n(in.x + r * in.x_stride, in.values.cols(),
                  inputs + in.slots[static_cast<size_t>(r)] * at.width());
  });
  const std::vector<Run> runs = sampled(in.rows);
  AttendArgs args = in.attended;
  args.kv.v = reinterpret_cast<uint8_t*>(at.values());
  for (int64_t i = 0; i < at.n_slices; ++i) {
    store_slice(team, at, inputs, i, args.kv, kernels);
    mix_slice(team, at, runs, i, args, kernels);
  }
  const int64_t n_sampled = runs.empty() ? 0 : runs.back().number + runs.back().n;
  return {.weights = {}, .x = at.mixes(), .x_stride = at.width(), .n_rows = n_sampled * at.n_heads};
}

}  // namespace pyflow
