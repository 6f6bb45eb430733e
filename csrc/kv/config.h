// What a cache is asked to hold, and the cells that it takes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/buffer.h"
#include "kernels/table.h"
#include "kv/storage/remote_cells.h"

namespace pyflow {

struct LayerKv {
  int64_t n_kv_heads;
  int64_t key_dim, value_dim;  // of the model; cells may take more (kernels/table.h)
  int64_t window;              // positions that a row reaches, its own included; 0: all
  // A row reaches those of its own chunk of `window` positions alone: chunks begin at multiples.
  bool chunked = false;
  bool values_in_keys = false;  // values are the first value_dim of keys
};

struct KvConfig {
  std::vector<LayerKv> layers;
  CacheType type = CacheType::F16;
  int64_t n_ctx = 0;    // cells of an unwindowed group, shared by all sequences
  int n_seq_max = 1;    // sequences 0 .. n_seq_max - 1, at most kMaxSequences
  int64_t n_batch = 1;  // rows in flight at most
  // Turns one cell's keys in a sequence, n_kv_heads of them `stride` floats apart, by delta
  // positions; must not throw. Without it seq_add is unsupported.
  std::function<void(size_t layer, int seq, float* k, int64_t stride, int32_t delta)> rotate;
  // Told of the memory for the cells before anything touches it.
  std::function<void(const Buffer&)> place = nullptr;
  // By layer: whether its cells lie in another memory than the host's; empty: none do.
  std::vector<uint8_t> remote = {};
  // Makes them. May throw ResourceError.
  std::function<std::unique_ptr<kv::RemoteCells>(size_t layer, int64_t n_cells)> make_remote =
      nullptr;
  bool is_remote(size_t layer) const { return !remote.empty() && remote[layer]; }
};

namespace kv {

// Positions and counts of cells stay below it, so that one past the last fits an int32_t.
inline constexpr int64_t kMaxPositions = INT32_MAX;

struct GroupPlan {
  int64_t window;
  int64_t capacity;  // cells
  std::vector<size_t> layers;
  bool chunked = false;
};

// The groups of a config: unwindowed first, then descending windows. Throws ShapeError for a config
// that cannot be.
std::vector<GroupPlan> plan_groups(const KvConfig& config);

}  // namespace kv
}  // namespace pyflow
