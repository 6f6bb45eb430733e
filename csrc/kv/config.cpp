#include "kv/config.h"

#include <algorithm>
#include <string>

#include "core/errors.h"
#include "kv/sequence_set.h"
#include "kv/storage/cell_layout.h"

namespace pyflow::kv {
namespace {

void require(bool ok, const char* name, int64_t found, const std::string& expected) {
  if (!ok)
    throw ShapeError(std::string("KV cache: ") + name + " is " + std::to_string(found) +
                     "; expected " + expected);
}

void check(const KvConfig& config) {
  constexpr int64_t kMostCells = kMaxPositions - kBlockCells;
  require(!config.layers.empty(), "the number of layers", 0, "at least 1");
  require(config.n_ctx >= 1 && config.n_ctx <= kMostCells, "n_ctx", config.n_ctx,
          "1 .. " + std::to_string(kMostCells) + " cells");
  require(config.n_seq_max >= 1 && config.n_seq_max <= kMaxSequences, "n_seq_max", config.n_seq_max,
          "1 .. " + std::to_string(kMaxSequences) + " sequences");
  require(config.n_batch >= 1 && config.n_batch <= kMaxPositions, "n_batch", config.n_batch,
          "at least 1 row");
  for (const LayerKv& layer : config.layers)
    require(layer.window >= (layer.chunked ? 1 : 0), "a window", layer.window,
            "0 (none; not of chunks) or more positions");
}

// Sequences that decode apart each need their window; the rows in flight come on top, because
// nothing is evicted before they are committed.
int64_t capacity(const KvConfig& config, int64_t window) {
  if (window == 0) return config.n_ctx;
  const int64_t needed = std::min(window, kMaxPositions) * config.n_seq_max + config.n_batch;
  return (std::min(config.n_ctx, needed) + kBlockCells - 1) / kBlockCells * kBlockCells;
}

}  // namespace

std::vector<GroupPlan> plan_groups(const KvConfig& config) {
  check(config);
  std::vector<GroupPlan> groups;
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const int64_t window = config.layers[i].window;
    const bool chunked = config.layers[i].chunked;
    auto at = std::find_if(groups.begin(), groups.end(), [&](const GroupPlan& g) {
      return g.window == window && g.chunked == chunked;
    });
    if (at == groups.end()) at = groups.insert(at, {window, capacity(config, window), {}, chunked});
    at->layers.push_back(i);
  }
  std::sort(groups.begin(), groups.end(), [](const GroupPlan& a, const GroupPlan& b) {
    return b.window != 0 && (a.window == 0 || a.window > b.window);
  });
  return groups;
}

}  // namespace pyflow::kv
