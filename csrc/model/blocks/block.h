// What a block is. One file per kind in this folder; blocks.def lists them.
#pragma once

#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "kv/kv_cache.h"
#include "model/device/needs.h"
#include "model/scratch.h"
#include "model/spec.h"
#include "model/step.h"
#include "model/weights.h"

namespace pyflow {

class DeviceStep;

class Block {
 public:
  virtual ~Block() = default;
  // With a cache of such cells.
  virtual ScratchNeeds needs(CacheType cells) const = 0;
  // Called by every thread of the team; ends with all rows of its output register written.
  virtual void forward(Step&, Team&) const = 0;
  // Whether it adds to its output register, and so reads it.
  virtual bool adds() const { return false; }
  // Of a member: bytes that each round brings together for a row of a regime.
  virtual std::vector<int64_t> rounds(const KernelTable&, Regime) const { return {}; }

  // For blocks that see a source: stores what it needs of the rows in x, those of an encoder.
  virtual void read_source(Step&, Team&) const {}

  // For blocks that run on devices (blocks.def): what they take there besides matrices, and the
  // commands of a step.
  virtual void device_needs(DeviceNeeds&) const {}
  virtual void record(DeviceStep&) const {}
};

// The rope of a layer's keys, and the dim of a key from which on it turns them.
struct KeyRope {
  size_t rope;
  int64_t first = 0;
};

// What blocks report to their stage when they are made.
struct BlockFacts {
  std::vector<LayerKv> kv_layers;                // one per block that caches
  std::map<int64_t, size_t> attention_cells;     // by layer: those of its attention
  std::map<int64_t, int64_t> cell_readers;       // layers without, and whose they read
  std::vector<std::optional<KeyRope>> kv_ropes;  // the rope of each one's keys
  std::vector<LayerKv> source_layers;            // one per block that reads a source
  bool relative = false;                         // some block uses distances between positions
  bool absolute = false;                         // some block uses positions themselves
  bool host_only = false;                        // attention is more than devices can do
  std::set<const PackedTensor*> occasional;      // of which a token reads nothing, or one row
  std::set<const PackedTensor*> values;          // W_v that share no tensor with W_q or W_k
  std::set<const PackedTensor*> unadapted;       // beside which no adapter can be
  std::map<const PackedTensor*, int64_t> side_by_side;  // of jobs: products of a row at a time
  int64_t n_positions = std::numeric_limits<int64_t>::max();  // of a table of positions
  int64_t n_types = 1;                                        // of tokens
};

struct BlockContext {
  const StageSpec& stage;
  Weights& weights;
  BlockFacts& facts;
  bool is_first = false;  // the block follows the embedding directly
  int64_t layer = 0;      // of the stage
};

// Throws UnsupportedError for an unknown kind, ShapeError for parameters that do not fit.
std::unique_ptr<Block> make_block(const BlockSpec&, BlockContext&);
// Where blocks of a kind can run (blocks.def).
enum class Runs : uint8_t { HostOnly, Anywhere, Experts };
Runs where_runs(const std::string& kind);

// make_<kind> for each line of blocks.def, in <kind>.cpp, or in the kind's folder.
#define PYFLOW_BLOCK(kind, where) \
  std::unique_ptr<Block> make_##kind(const BlockSpec&, BlockContext&);
#include "model/blocks/blocks.def"
#undef PYFLOW_BLOCK

// 0 for "x", 1 for "h", 2 for "a".
size_t register_index(const std::string& name);

}  // namespace pyflow
