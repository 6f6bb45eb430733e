// The keys and values of a context: cells that carry a position and a set of sequences.
//
// A row (position p, sequences S) sees a cell (position q, sequences T) iff S is a subset of T, q
// <= p, and the layer's window is 0 or q > p - window, or q is in p's chunk. Prefill chunks, batches of sequences, token
// trees and shared prefixes are all this one rule. Layers with the same window form a group with
// cells of its own: n_ctx cells without a window, else a ring whose size depends on the window and
// not on the length of the text. docs/kv-cache.md works an example.
//
// A step: begin(rows) reserves a cell per row and group, the layers store keys and values at
// slots() and attend over views(), then commit() or abort(). A tree of drafted tokens is a step of
// rows with parents, which may grow before it ends: such a row sees the cells of its sequences and,
// of the pending rows, its ancestors. Operations that throw have changed nothing. One thread at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "kernels/table.h"
#include "kv/cells.h"
#include "kv/config.h"
#include "kv/sequence_set.h"
#include "kv/step.h"
#include "kv/storage/storage.h"

namespace pyflow {

struct KvGroup {
  int64_t window;
  int64_t capacity;  // cells
  int64_t used;      // cells that a sequence or a pending row holds
};

class KvCache {
 public:
  // Throws ShapeError for a config that cannot be, ResourceError when the
  // memory is refused. The table must outlive the cache.
  KvCache(KvConfig config, const KernelTable& table);

  // Bytes of keys and values that a cache of this config maps.
  static size_t nbytes(const KvConfig& config);
  // Of the layers that are elsewhere.
  static size_t remote_nbytes(const KvConfig& config) {
    return kv::Storage::remote_nbytes(config, kv::plan_groups(config));
  }

  // Reserves a cell for every row in every group. ShapeError: too many rows, a row without
  // sequences, a negative position, a sequence out of range, or one that already holds the
  // position. ResourceError: too few free cells, or a window that reaches positions whose cells
  // have been evicted.
  void begin(std::span<const KvRow> rows);
  // The same for rows of trees: parents[i] is the pending row that row i continues, one before it,
  // or kNoParent. Adds to a tree that is pending already. ShapeError also for a row that does not
  // follow its parent in position or has other sequences, and for a second root of a sequence.
  void grow(std::span<const KvRow> rows, std::span<const int32_t> parents);
  // The rows of the step that is pending, if one is.
  std::span<const KvRow> pending() const { return step_.rows(); }
  // Per pending row: where its keys and values go.
  std::span<const int32_t> slots(size_t layer) const { return cells_of(layer).slots(); }
  // Per pending row: the cells it sees, pending ones and its own included. Valid until the step
  // ends.
  std::span<const RowView> views(size_t layer) const { return cells_of(layer).views(); }
  const KvView& view(size_t layer) const { return storage_.view(layer); }
  // Null if the layer's cells lie in the host's memory.
  kv::RemoteCells* remote(size_t layer) const { return storage_.remote(layer); }
  // All pending rows become cells of their sequences.
  void commit();
  // The pending rows listed, those of a sequence ascending in position, each become a cell of that
  // sequence alone; the others are freed. Their keys and values move to where they continue the
  // sequence, where possible. If a device fails at that, the sequences are empty.
  void commit(std::span<const kv::Accepted> accepted);
  // Frees all pending rows.
  void abort();

  // Operations between steps. Ranges are [p0, p1); p0 < 0 means 0, p1 < 0 means the end.

  // dst comes to hold src's cells too. The cost does not depend on how many cells they are, as long
  // as they lie in few runs. ShapeError if dst already holds a position in the range.
  void seq_cp(int src, int dst, int32_t p0, int32_t p1);
  void seq_rm(int seq, int32_t p0, int32_t p1);
  // Removes every other sequence.
  void seq_keep(int seq);
  // Moves positions by delta and re-rotates the keys; cells that other sequences hold are copied
  // first, cells whose position would become negative are dropped. Keys are rounded again.
  // ShapeError on a collision with a position that stays, ResourceError when there are too few
  // cells for the copies.
  void seq_add(int seq, int32_t p0, int32_t p1, int32_t delta);
  void clear();

  // The lowest and highest position held, -1 if none: in the unwindowed group, or if all layers
  // have windows, in the group with the largest.
  int32_t seq_pos_min(int seq) const;
  int32_t seq_pos_max(int seq) const;
  // The largest m <= n such that seq holds positions 0 .. m - 1 and, cut to them by
  // seq_rm(seq, m, -1), can go on at position m as if nothing after had ever been computed. Less
  // than asked for when a window has already evicted what position m would see.
  int32_t seq_reusable(int seq, int32_t n = std::numeric_limits<int32_t>::max()) const;

  // Bytes of the keys and values of a cell in a layer.
  size_t cell_nbytes(size_t layer) const { return storage_.cell_nbytes(layer); }
  // Of those, the keys', which come first.
  size_t key_nbytes(size_t layer) const { return storage_.key_nbytes(layer); }
  // The keys and values of positions [p0, p1) of a sequence, cell after cell, in an order of their
  // own. ShapeError: the layer does not hold them all.
  void read_cells(size_t layer, int seq, int32_t p0, int32_t p1, uint8_t* out) const;
  // Stores what read_cells gave as the keys and values of the last n pending rows.
  void write_cells(size_t layer, int64_t n, const uint8_t* cells);

  // Unwindowed first, then descending windows.
  std::vector<KvGroup> groups() const;
  size_t group_of(size_t layer) const { return group_of_[layer]; }

  // For tests: the (position, slot) pairs of a sequence, ascending; and every invariant, throwing
  // Error that names the first one broken.
  std::vector<std::pair<int32_t, int32_t>> cells(size_t group, int seq) const;
  void check() const;

 private:
  struct Group {
    kv::Cells cells;
    std::vector<size_t> layers;
    std::span<const kv::CellMove> moves = {};  // of the commit that is being made
  };
  KvCache(KvConfig config, const KernelTable& table, std::vector<kv::GroupPlan> plan);
  void check_idle(const char* operation) const;
  void check_pending(const char* operation) const;
  void check_sequence(int seq) const;
  void check_free(int seq, int64_t p0, int64_t p1) const;
  void check_rows(std::span<const KvRow> rows) const;
  void check_parents(std::span<const KvRow> rows, std::span<const int32_t> parents) const;
  // No two rows of the step give a sequence the same position.
  void check_distinct() const;
  void add(std::span<const KvRow> rows, std::span<const int32_t> parents);
  void end_step();
  void forget(int seq);
  void check_room(const kv::Cells& cells, int64_t n_cells, const char* what) const;
  const kv::Cells& cells_of(size_t layer) const { return groups_[group_of_[layer]].cells; }
  void move(const Group& group, std::span<const kv::CellMove> moves);
  // Every group knows the same positions of a sequence; the first one holds the most of them.
  const kv::Runs& runs(int seq) const { return groups_.front().cells.sequence(seq); }

  KvConfig config_;
  const KernelTable* table_;
  kv::Storage storage_;
  std::vector<Group> groups_;
  std::vector<size_t> group_of_;
  kv::Step step_;
  bool pending_ = false;
  std::vector<float> key_;         // one cell's keys while they turn
  std::vector<uint8_t> accepted_;  // of a commit, by row
  std::vector<int32_t> newest_;    // of a commit, by sequence: the position accepted last
};

}  // namespace pyflow
