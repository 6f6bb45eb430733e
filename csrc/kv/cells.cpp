#include "kv/cells.h"

#include <algorithm>
#include <string>

#include "core/errors.h"

namespace pyflow::kv {

Cells::Cells(int64_t window, int64_t capacity, int n_seq_max, int64_t n_batch, bool chunked)
    : window_(window),
      slot_map_(capacity, std::max(kRoom, capacity / n_seq_max)),
      sequences_(static_cast<size_t>(n_seq_max)),
      views_(window, capacity, n_seq_max, n_batch, chunked),
      tail_(static_cast<size_t>(n_seq_max), -1) {
  slots_.reserve(static_cast<size_t>(n_batch));
}

int64_t Cells::hole(const KvRow& row) const {
  if (window_ == 0) return -1;
  // A cell of all these sequences left a mark in each of them: leap to the first common mark.
  int64_t p = std::max<int64_t>(0, row.position - window_ + 1);
  for (bool common = false; !common;) {
    common = true;
    for (int s : row.sequences) {
      const int64_t mark = sequence(s).next_evicted(p);
      if (mark < 0 || mark > row.position) return -1;
      if (mark > p) {
        p = mark;
        common = false;
      }
    }
  }
  return p;
}

void Cells::reserve(const Step& step) {
  for (size_t i = slots_.size(); i < step.rows().size(); ++i) {
    const KvRow& row = step.rows()[i];
    const int seq = row.sequences.first();
    const int32_t parent = step.parent(i);
    const int32_t previous =
        parent == kNoParent ? slot_before(seq, row.position) : slots_[static_cast<size_t>(parent)];
    slots_.push_back(slot_map_.place(previous, row.position));
    if (!step.is_tree()) tail_[static_cast<size_t>(seq)] = slots_.back();
  }
  if (!step.is_tree())
    for (const KvRow& row : step.rows()) tail_[static_cast<size_t>(row.sequences.first())] = -1;
  views_.build(step, sequences_, slots_);
}

void Cells::add(int seq, const Run& run) {
  views_.cut(seq, run.position);
  sequences_[static_cast<size_t>(seq)].insert(run);
}

void Cells::end_step() {
  slot_map_.settle(slots_);
  slots_.clear();
  evict();
}

void Cells::commit(const Step& step) {
  for (int32_t i : step.by_position())
    for (int s : step.row(i).sequences)
      add(s, {step.row(i).position, slots_[static_cast<size_t>(i)], 1});
  end_step();
}

std::span<const CellMove> Cells::commit(const Step& step, std::span<const Accepted> accepted) {
  moves_.clear();
  for (int32_t slot : slots_) slot_map_.release(slot);
  for (const Accepted& a : accepted) slot_map_.take(slots_[static_cast<size_t>(a.row)]);
  for (const auto& [i, seq] : accepted) {
    int32_t slot = slots_[static_cast<size_t>(i)];
    const int32_t previous = slot_before(seq, step.row(i).position);
    // An accepted cell that is still to move has its slot taken, so no move overwrites it.
    if (previous >= 0 && !slot_map_.taken(slot_map_.after(previous))) {
      const int32_t to = slot_map_.after(previous);
      slot_map_.take(to);
      slot_map_.release(slot);
      moves_.push_back({slot, to});
      slot = to;
    }
    add(seq, {step.row(i).position, slot, 1});
    tail_[static_cast<size_t>(seq)] = slot;
  }
  for (const Accepted& a : accepted) tail_[static_cast<size_t>(a.seq)] = -1;
  end_step();
  return moves_;
}

void Cells::abort() {
  for (int32_t slot : slots_) slot_map_.release(slot);
  slot_map_.settle(slots_);
  slots_.clear();
}

void Cells::share(int src, int dst, int64_t p0, int64_t p1) {
  views_.cut(dst, p0);
  pieces_.clear();
  sequence(src).each(p0, p1, [&](const Run& r) { pieces_.push_back(r); });
  for (const Run& r : pieces_) sequences_[static_cast<size_t>(dst)].insert(r);
}

void Cells::find_unshared(const Run& run, int owner, bool in_reach) {
  unshared_.assign(1, run);
  for (int s = 0; s < static_cast<int>(sequences_.size()); ++s) {
    if (s == owner || sequence(s).empty()) continue;
    const int64_t from = in_reach ? reach(s) : 0;
    sequence(s).each(std::max<int64_t>(run.position, from), run.end(), [&](const Run& r) {
      if (r.held() && r.slot == run.slot_at(r.position)) subtract(unshared_, r);
    });
  }
}

void Cells::remove(int seq, int64_t p0, int64_t p1) {
  pieces_.clear();
  sequence(seq).each(p0, p1, [&](const Run& r) {
    if (r.held()) pieces_.push_back(r);
  });
  views_.cut(seq, p0);
  sequences_[static_cast<size_t>(seq)].erase(p0, p1);
  for (const Run& piece : pieces_) {
    find_unshared(piece, seq, false);
    for (const Run& r : unshared_) slot_map_.release(r.slot, r.n);
  }
}

void Cells::clear() {
  slot_map_ = SlotMap(capacity(), slot_map_.room());
  for (int s = 0; s < static_cast<int>(sequences_.size()); ++s) {
    sequences_[static_cast<size_t>(s)].clear();
    views_.cut(s, 0);
  }
}

int64_t Cells::shift_copies(int seq, int64_t p0, int64_t p1, int64_t delta) {
  int64_t n = 0;
  // Below -delta the new position would be negative: dropped, not copied.
  sequence(seq).each(std::max(p0, -delta), p1, [&](const Run& r) {
    if (!r.held()) return;
    find_unshared(r, seq, false);
    n += r.n;
    for (const Run& own : unshared_) n -= own.n;
  });
  return n;
}

CellShift Cells::shift(int seq, int64_t p0, int64_t p1, int32_t delta) {
  CellShift result;
  if (const int64_t lowest = -int64_t{delta}; p0 < lowest) {
    remove(seq, p0, std::min(p1, lowest));
    p0 = lowest;
  }
  Runs& runs = sequences_[static_cast<size_t>(seq)];
  std::vector<Run> moving, placed;
  runs.each(p0, p1, [&](const Run& r) { moving.push_back(r); });
  views_.cut(seq, std::min(p0, p0 + delta));
  runs.erase(p0, p1);
  for (const Run& r : moving) {
    if (!r.held()) {
      placed.push_back(r);
      continue;
    }
    find_unshared(r, seq, false);
    placed.insert(placed.end(), unshared_.begin(), unshared_.end());
    std::vector<Run> shared(1, r);
    for (const Run& own : unshared_) subtract(shared, own);
    int32_t previous = -1;
    for (const Run& s : shared)
      for (int32_t i = 0; i < s.n; ++i) {
        previous = slot_map_.place(previous, s.position + i + delta);
        slot_map_.settle({&previous, 1});
        result.copies.push_back({s.slot + i, previous});
        placed.push_back({s.position + i, previous, 1});
      }
  }
  for (Run r : placed) {
    r.position += delta;
    runs.insert(r);
    if (r.held()) result.turned.push_back(r);
  }
  return result;
}

// The run leaves every sequence that holds it, and its slots are free.
void Cells::retire(const Run& run) {
  for (int s = 0; s < static_cast<int>(sequences_.size()); ++s) {
    Runs& runs = sequences_[static_cast<size_t>(s)];
    if (runs.empty()) continue;
    held_.clear();
    runs.each(run.position, run.end(), [&](const Run& r) {
      if (r.held() && r.slot == run.slot_at(r.position)) held_.push_back(r);
    });
    for (const Run& r : held_) {
      runs.evict(r.position, r.end());
      // A stream loses its oldest cells; only a cell from the middle breaks the list.
      const int64_t first = runs.first_held();
      if (first >= 0 && first < r.position)
        views_.cut(s, r.position);
      else
        views_.drop_below(s, r.end());
    }
  }
  slot_map_.release(run.slot, run.n);
}

void Cells::evict() {
  if (window_ == 0) return;
  for (int s = 0; s < static_cast<int>(sequences_.size()); ++s) {
    pieces_.clear();
    sequence(s).each(0, reach(s), [&](const Run& r) {
      if (r.held()) pieces_.push_back(r);
    });
    for (const Run& piece : pieces_) {
      find_unshared(piece, s, true);
      for (const Run& r : unshared_) retire(r);
    }
  }
}

void Cells::check() const {
  const std::string group = "group of window " + std::to_string(window_) + ": ";
  // Which position each slot holds, and whether a sequence still reaches it.
  std::vector<int64_t> position_of(static_cast<size_t>(capacity()), -1);
  std::vector<bool> reached(static_cast<size_t>(capacity()));
  for (int s = 0; s < static_cast<int>(sequences_.size()); ++s) {
    sequence(s).check(capacity());
    views_.check(s, sequence(s));
    for (const Run& r : sequence(s).all())
      for (int32_t p = r.position; r.held() && p < r.end(); ++p) {
        const auto slot = static_cast<size_t>(r.slot_at(p));
        if (position_of[slot] >= 0 && position_of[slot] != p)
          throw Error(group + "slot " + std::to_string(slot) + " holds two positions");
        position_of[slot] = p;
        if (window_ == 0 || p >= reach(s)) reached[slot] = true;
      }
  }
  for (int32_t slot : slots_) {
    if (position_of[static_cast<size_t>(slot)] >= 0)
      throw Error(group + "pending slot " + std::to_string(slot) + " belongs to a committed cell");
    position_of[static_cast<size_t>(slot)] = 0;
    reached[static_cast<size_t>(slot)] = true;
  }
  int64_t n_used = 0;
  for (size_t slot = 0; slot < position_of.size(); ++slot) {
    const bool wanted = position_of[slot] >= 0;
    n_used += wanted;
    if (wanted != slot_map_.taken(static_cast<int32_t>(slot)))
      throw Error(group + "slot " + std::to_string(slot) + (wanted ? " is lost" : " leaks"));
    if (wanted && !reached[slot])
      throw Error(group + "slot " + std::to_string(slot) + " should have been evicted");
  }
  if (n_used != used()) throw Error(group + "the count of used slots is wrong");
}

}  // namespace pyflow::kv
