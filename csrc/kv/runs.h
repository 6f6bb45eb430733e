// The cells of one sequence in one group, as runs: consecutive positions in consecutive slots.
//
// Sequences that share cells hold equal runs; a run is a value, so sharing a prefix copies a few
// triples however many cells they cover. A run whose cells have been evicted stays as a mark
// without slots, so that a sequence knows in every group which positions it consists of.
//
//   text streams through a ring of 8 slots; window 4; positions 0 .. 9 committed:
//     {position 0, slot kEvicted, n 7} {position 7, slot 7, n 1} {position 8, slot 0, n 2}
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace pyflow::kv {

inline constexpr int32_t kEvicted = -1;

struct Run {
  int32_t position;
  int32_t slot;
  int32_t n;

  int64_t end() const { return int64_t{position} + n; }  // one past the last position
  bool held() const { return slot != kEvicted; }
  int32_t slot_at(int32_t p) const { return held() ? slot + (p - position) : kEvicted; }
  // The part that lies in [p0, p1), which must not be empty.
  Run clip(int64_t p0, int64_t p1) const {
    const auto first = static_cast<int32_t>(std::max<int64_t>(p0, position));
    return {first, slot_at(first), static_cast<int32_t>(std::min(p1, end()) - first)};
  }
  // Whether b goes on where this run stops.
  bool joins(const Run& b) const {
    return end() == b.position && held() == b.held() && (!held() || slot + n == b.slot);
  }
  bool operator==(const Run&) const = default;
};

// The keys and values of a cell must go from one slot to another; moves are made in order.
struct CellMove {
  int32_t from, to;
};

class Runs {
 public:
  bool empty() const { return runs_.empty(); }
  const std::vector<Run>& all() const { return runs_; }
  // One past the highest position, evicted ones included.
  int64_t end() const { return runs_.empty() ? 0 : runs_.back().end(); }

  // The first run that ends above p; all().size() if none does.
  size_t find(int64_t p) const;
  // Whether the sequence consists of p among others, evicted or not.
  bool contains(int64_t p) const;
  // The slot of the highest held position below p, -1 if there is none.
  int32_t slot_before(int64_t p) const;
  // The lowest evicted position that is at least p, -1 if there is none.
  int64_t next_evicted(int64_t p) const;
  // The last evicted run that begins below p; nullptr if there is none.
  const Run* evicted_before(int64_t p) const;
  // The lowest held position, -1 if there is none.
  int64_t first_held() const;
  int64_t last_held() const;

  // Adds a run, none of whose positions is there yet.
  void insert(Run run);
  void erase(int64_t p0, int64_t p1);
  // Marks the positions of [p0, p1), all of them held, as evicted.
  void evict(int64_t p0, int64_t p1);
  void clear() { runs_.clear(); }

  // f(run) for the parts in [p0, p1), ascending.
  template <class F>
  void each(int64_t p0, int64_t p1, F&& f) const {
    if (p0 >= p1) return;
    for (size_t i = find(p0); i < runs_.size() && runs_[i].position < p1; ++i)
      f(runs_[i].clip(p0, p1));
  }

  // Throws Error unless the runs ascend, are joined wherever they can be and lie in [0, n_slots).
  void check(int64_t n_slots) const;

 private:
  std::vector<Run> runs_;  // ascending, disjoint, no two that could be one
};

// Takes the positions of `taken` away from runs that ascend.
void subtract(std::vector<Run>& runs, const Run& taken);
// Keeps of `runs` the cells that `others` holds too, in the same slots.
void intersect(std::vector<Run>& runs, const Runs& others, std::vector<Run>& scratch);

}  // namespace pyflow::kv
