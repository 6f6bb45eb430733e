// The cells of one group: every layer with the same window keeps a position in the same slot.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/runs.h"
#include "kv/slot_map.h"
#include "kv/step.h"
#include "kv/views.h"

namespace pyflow::kv {

// A shift of positions as the storage sees it.
struct CellShift {
  std::vector<CellMove> copies;
  std::vector<Run> turned;  // cells whose keys must turn, the copies among them

  std::vector<int32_t> turned_slots() const {
    std::vector<int32_t> slots;
    for (const Run& r : turned)
      for (int32_t i = 0; i < r.n; ++i) slots.push_back(r.slot + i);
    return slots;
  }
};

class Cells {
 public:
  Cells(int64_t window, int64_t capacity, int n_seq_max, int64_t n_batch, bool chunked = false);

  int64_t window() const { return window_; }
  int64_t capacity() const { return slot_map_.capacity(); }
  int64_t used() const { return slot_map_.used(); }
  int64_t free() const { return slot_map_.free(); }
  const Runs& sequence(int seq) const { return sequences_[static_cast<size_t>(seq)]; }
  std::span<const int32_t> slots() const { return slots_; }
  std::span<const RowView> views() const { return views_.rows().first(slots_.size()); }

  // The first position whose cell the row should see, but which has been evicted; -1 if there is
  // none.
  int64_t hole(const KvRow& row) const;

  // None of these can fail: the cache has checked.
  // Reserves for the rows that have joined the step since the last call.
  void reserve(const Step& step);
  void commit(const Step& step);
  std::span<const CellMove> commit(const Step& step, std::span<const Accepted> accepted);
  void abort();

  void share(int src, int dst, int64_t p0, int64_t p1);
  void remove(int seq, int64_t p0, int64_t p1);
  void clear();
  // How many cells of [p0, p1) a shift by delta has to copy, because other sequences hold them.
  int64_t shift_copies(int seq, int64_t p0, int64_t p1, int64_t delta);
  CellShift shift(int seq, int64_t p0, int64_t p1, int32_t delta);
  // Gives up the cells that are out of reach of the next position of every sequence that holds
  // them. A group without a window has none.
  void evict();

  // Throws Error unless every invariant holds.
  void check() const;

 private:
  // The first position that a row at the end of the sequence sees.
  int64_t reach(int seq) const { return sequence(seq).end() - window_ + 1; }
  // Leaves in unshared_ the parts of a run of `owner` that no other sequence holds; with in_reach,
  // that no other sequence holds within its reach.
  void find_unshared(const Run& run, int owner, bool in_reach);
  void retire(const Run& run);
  void add(int seq, const Run& run);
  void end_step();
  // The slot of the cell before `position` in a sequence, pending ones that tail_ knows included.
  int32_t slot_before(int seq, int32_t position) const {
    const int32_t tail = tail_[static_cast<size_t>(seq)];
    return tail >= 0 ? tail : sequence(seq).slot_before(position);
  }

  int64_t window_;
  SlotMap slot_map_;
  std::vector<Runs> sequences_;
  Views views_;
  std::vector<int32_t> slots_;  // of the pending rows
  std::vector<int32_t> tail_;   // per sequence: the slot of its latest row so far, -1 without
  std::vector<CellMove> moves_;
  std::vector<Run> unshared_, pieces_, held_;
};

}  // namespace pyflow::kv
