#include "kv/kv_cache.h"

#include <algorithm>
#include <string>

#include "core/errors.h"

namespace pyflow {

using namespace kv;

namespace {

std::string str(int64_t n) { return std::to_string(n); }

struct Range {
  int64_t p0, p1;
  Range(int32_t first, int32_t last)
      : p0(std::max(first, 0)), p1(last < 0 ? kMaxPositions : last) {}
};

std::string described(int64_t window) {
  return window == 0 ? "the layers without a window" : "the layers of window " + str(window);
}

}  // namespace

KvCache::KvCache(KvConfig config, const KernelTable& table)
    : KvCache(config, table, plan_groups(config)) {}

KvCache::KvCache(KvConfig config, const KernelTable& table, std::vector<GroupPlan> plan)
    : config_(std::move(config)),
      table_(&table),
      storage_(config_, plan),
      group_of_(config_.layers.size()),
      step_(std::min(config_.n_batch, plan.front().capacity)) {
  for (GroupPlan& p : plan) {
    for (size_t layer : p.layers) group_of_[layer] = groups_.size();
    groups_.push_back({Cells(p.window, p.capacity, config_.n_seq_max,
                             std::min(config_.n_batch, p.capacity), p.chunked),
                       std::move(p.layers)});
  }
  int64_t widest = 0;
  for (const LayerKv& layer : config_.layers)
    widest = std::max(widest, layer.n_kv_heads * cell_dim(layer.key_dim, config_.type));
  key_.resize(static_cast<size_t>(widest));
}

size_t KvCache::nbytes(const KvConfig& config) {
  return Storage::nbytes(config, plan_groups(config));
}

void KvCache::check_idle(const char* operation) const {
  if (pending_)
    throw Error(std::string("KV cache: ") + operation +
                " while rows are pending; commit or abort the step first");
}

void KvCache::check_pending(const char* operation) const {
  if (!pending_) throw Error(std::string("KV cache: ") + operation + " without begin");
}

void KvCache::check_sequence(int seq) const {
  if (seq < 0 || seq >= config_.n_seq_max)
    throw ShapeError("KV cache: sequence " + str(seq) + " does not exist; this cache has 0 .. " +
                     str(config_.n_seq_max - 1) + " (n_seq_max)");
}

void KvCache::check_free(int seq, int64_t p0, int64_t p1) const {
  runs(seq).each(p0, p1, [seq](const Run& r) {
    throw ShapeError("KV cache: sequence " + str(seq) + " already holds position " +
                     str(r.position) + "; remove it first (seq_rm) or use another position");
  });
}

void KvCache::check_room(const Cells& cells, int64_t n_cells, const char* what) const {
  if (cells.free() < n_cells)
    throw ResourceError(std::string("KV cache: ") + what + " needs " + str(n_cells) + " cells in " +
                        described(cells.window()) + ", " + str(cells.free()) + " of " +
                        str(cells.capacity()) +
                        " are free; remove or shorten a sequence, or choose a larger context");
}

void KvCache::check_rows(std::span<const KvRow> rows) const {
  if (rows.empty()) throw ShapeError("KV cache: a step without rows");
  const auto n_rows = static_cast<int64_t>(step_.rows().size() + rows.size());
  if (n_rows > config_.n_batch)
    throw ShapeError("KV cache: a step of " + str(n_rows) + " rows; this cache takes " +
                     str(config_.n_batch) + " (n_batch): split it");
  for (const KvRow& row : rows) {
    if (row.position < 0 || row.position >= kMaxPositions)
      throw ShapeError("KV cache: a row at position " + str(row.position) + "; expected 0 .. " +
                       str(kMaxPositions - 1));
    if (row.sequences.empty())
      throw ShapeError("KV cache: the row at position " + str(row.position) +
                       " belongs to no sequence");
    for (int s : row.sequences) {
      check_sequence(s);
      check_free(s, row.position, int64_t{row.position} + 1);
    }
  }
}

void KvCache::check_parents(std::span<const KvRow> rows, std::span<const int32_t> parents) const {
  if (parents.size() != rows.size())
    throw ShapeError("KV cache: expected a parent for each of " + str(rows.size()) +
                     " rows, found " + str(parents.size()));
  const auto before = static_cast<int64_t>(step_.rows().size());
  SequenceSet roots;
  for (int64_t i = 0; i < before; ++i)
    if (step_.parent(static_cast<size_t>(i)) == kNoParent)
      roots |= step_.row(static_cast<int32_t>(i)).sequences;
  for (int64_t i = 0; i < static_cast<int64_t>(rows.size()); ++i) {
    const KvRow& row = rows[static_cast<size_t>(i)];
    const int32_t p = parents[static_cast<size_t>(i)];
    if (p == kNoParent) {
      if (row.sequences.intersects(roots))
        throw ShapeError("KV cache: row " + str(before + i) + " at position " + str(row.position) +
                         " is the second root of a sequence; a step has one tree per sequence");
      roots |= row.sequences;
      continue;
    }
    if (p < 0 || p >= before + i)
      throw ShapeError("KV cache: parent " + str(p) + " of row " + str(before + i) +
                       ": expected a row before it, or -1");
    const KvRow& parent = p < before ? step_.row(p) : rows[static_cast<size_t>(p - before)];
    if (row.position != parent.position + 1 || !(row.sequences == parent.sequences))
      throw ShapeError("KV cache: row " + str(before + i) + " at position " + str(row.position) +
                       " does not continue its parent, row " + str(p) + " at position " +
                       str(parent.position));
  }
}

void KvCache::check_distinct() const {
  SequenceSet seen;  // by the rows at the same position, which must not share a sequence
  int32_t position = -1;
  for (int32_t i : step_.by_position()) {
    const KvRow& row = step_.row(i);
    if (row.position != position) seen = SequenceSet();
    position = row.position;
    for (int s : row.sequences)
      if (seen.contains(s))
        throw ShapeError("KV cache: two rows of the step give sequence " + str(s) + " position " +
                         str(position));
    seen |= row.sequences;
  }
}

void KvCache::begin(std::span<const KvRow> rows) {
  check_idle("begin");
  check_rows(rows);
  add(rows, {});
}

void KvCache::grow(std::span<const KvRow> rows, std::span<const int32_t> parents) {
  if (pending_ && !step_.is_tree()) check_idle("grow");
  check_rows(rows);
  check_parents(rows, parents);
  add(rows, parents);
}

void KvCache::add(std::span<const KvRow> rows, std::span<const int32_t> parents) {
  for (const Group& group : groups_) {
    check_room(group.cells, static_cast<int64_t>(rows.size()), "the step");
    for (const KvRow& row : rows)
      if (const int64_t p = group.cells.hole(row); p >= 0) {
        const int seq = row.sequences.first();
        throw ResourceError("KV cache: sequence " + str(seq) + " at position " + str(row.position) +
                            " reaches back to position " + str(p) + ", which " +
                            described(group.cells.window()) + " no longer hold; cut it to " +
                            str(seq_reusable(seq, row.position)) +
                            " positions (seq_rm) and compute the rest again");
      }
  }
  step_.add(rows, parents);
  if (!step_.is_tree()) try {
      check_distinct();
    } catch (...) {
      step_.clear();
      throw;
    }
  step_.group_peers();
  for (Group& group : groups_) group.cells.reserve(step_);
  pending_ = true;
}

void KvCache::commit() {
  check_pending("commit");
  for (Group& group : groups_) group.cells.commit(step_);
  end_step();
}

void KvCache::commit(std::span<const Accepted> accepted) {
  check_pending("commit");
  const auto n_rows = static_cast<int64_t>(step_.rows().size());
  accepted_.assign(static_cast<size_t>(n_rows), 0);
  newest_.assign(static_cast<size_t>(config_.n_seq_max), -1);
  for (const auto& [i, seq] : accepted) {
    check_sequence(seq);
    if (i < 0 || i >= n_rows)
      throw ShapeError("KV cache: accepted row " + str(i) + "; the step has " + str(n_rows) +
                       " rows");
    if (std::exchange(accepted_[static_cast<size_t>(i)], 1))
      throw ShapeError("KV cache: row " + str(i) + " is accepted twice");
    const int32_t position = step_.row(i).position;
    if (const int32_t before = std::exchange(newest_[static_cast<size_t>(seq)], position);
        before >= position)
      throw ShapeError("KV cache: accepted row " + str(i) + " at position " + str(position) +
                       " after position " + str(before) +
                       "; accepted rows of a sequence ascend in position");
    check_free(seq, position, int64_t{position} + 1);
  }
  for (Group& group : groups_) group.moves = group.cells.commit(step_, accepted);
  end_step();
  try {
    for (const Group& group : groups_) move(group, group.moves);
  } catch (...) {  // of a device: what has not moved is lost
    for (const auto& [row, seq] : accepted) forget(seq);
    throw;
  }
}

void KvCache::forget(int seq) {
  for (Group& group : groups_) group.cells.remove(seq, 0, kMaxPositions);
}

void KvCache::abort() {
  check_pending("abort");
  for (Group& group : groups_) group.cells.abort();
  end_step();
}

void KvCache::end_step() {
  step_.clear();
  pending_ = false;
}

void KvCache::move(const Group& group, std::span<const CellMove> moves) {
  if (moves.empty()) return;
  for (size_t layer : group.layers) storage_.copy(layer, moves);
}

void KvCache::seq_cp(int src, int dst, int32_t p0, int32_t p1) {
  check_idle("seq_cp");
  check_sequence(src);
  check_sequence(dst);
  const Range range(p0, p1);
  check_free(dst, range.p0, range.p1);
  for (Group& group : groups_) {
    group.cells.share(src, dst, range.p0, range.p1);
    group.cells.evict();
  }
}

void KvCache::seq_rm(int seq, int32_t p0, int32_t p1) {
  check_idle("seq_rm");
  check_sequence(seq);
  const Range range(p0, p1);
  for (Group& group : groups_) {
    group.cells.remove(seq, range.p0, range.p1);
    group.cells.evict();
  }
}

void KvCache::seq_keep(int seq) {
  check_idle("seq_keep");
  check_sequence(seq);
  for (int s = 0; s < config_.n_seq_max; ++s)
    if (s != seq) forget(s);
  for (Group& group : groups_) group.cells.evict();
}

void KvCache::clear() {
  check_idle("clear");
  for (Group& group : groups_) group.cells.clear();
}

void KvCache::seq_add(int seq, int32_t p0, int32_t p1, int32_t delta) {
  check_idle("seq_add");
  check_sequence(seq);
  if (!config_.rotate)
    throw UnsupportedError("KV cache: the keys of this model cannot move to other positions");
  const Range range(p0, p1);
  if (delta == 0) return;
  runs(seq).each(range.p0, range.p1, [&](const Run& r) {
    if (r.end() + delta > kMaxPositions)
      throw ShapeError("KV cache: position " + str(r.end() - 1) + " cannot move by " + str(delta) +
                       "; the last position is " + str(kMaxPositions - 1));
    // What it meets below and above the range does not move out of its way.
    const int64_t first = std::max<int64_t>(0, r.position + int64_t{delta}), last = r.end() + delta;
    check_free(seq, first, std::min(last, range.p0));
    check_free(seq, std::max(first, range.p1), last);
  });
  for (Group& group : groups_)
    check_room(group.cells, group.cells.shift_copies(seq, range.p0, range.p1, delta),
               "copying the cells that other sequences hold too");
  for (Group& group : groups_) try {
      const CellShift shift = group.cells.shift(seq, range.p0, range.p1, delta);
      move(group, shift.copies);
      const std::vector<int32_t> turned = shift.turned_slots();
      for (size_t layer : group.layers)
        storage_.edit_keys(layer, turned, [&](const KvView& keys, int32_t slot) {
          table_->load_k(keys, slot, key_.data());
          config_.rotate(layer, seq, key_.data(), keys.key_dim, delta);
          table_->store_k(keys, slot, key_.data());
        });
      group.cells.evict();
    } catch (...) {  // of a device: some keys have turned, others have not
      forget(seq);
      throw;
    }
}

int32_t KvCache::seq_pos_min(int seq) const {
  check_sequence(seq);
  return static_cast<int32_t>(runs(seq).first_held());
}

int32_t KvCache::seq_pos_max(int seq) const {
  check_sequence(seq);
  return static_cast<int32_t>(runs(seq).last_held());
}

int32_t KvCache::seq_reusable(int seq, int32_t n) const {
  check_sequence(seq);
  int64_t m = 0;
  for (const Run& r : runs(seq).all()) {
    if (r.position != m) break;
    m = r.end();
  }
  m = std::min<int64_t>(m, std::max(n, 0));
  for (size_t g = 0; g < groups_.size();) {
    const Run* evicted = groups_[g].cells.sequence(seq).evicted_before(m);
    if (evicted && std::min(evicted->end(), m) > m - groups_[g].cells.window() + 1) {
      // So would every prefix that is longer than where this run begins.
      m = evicted->position;
      g = 0;
    } else {
      ++g;
    }
  }
  return static_cast<int32_t>(m);
}

void KvCache::read_cells(size_t layer, int seq, int32_t p0, int32_t p1, uint8_t* out) const {
  check_sequence(seq);
  int64_t next = p0;
  std::vector<int32_t> held;
  cells_of(layer).sequence(seq).each(p0, p1, [&](const Run& r) {
    if (r.position != next || !r.held()) return;
    for (next = r.position; next < r.end(); ++next)
      held.push_back(r.slot_at(static_cast<int32_t>(next)));
  });
  if (next != std::max(p0, p1))
    throw ShapeError("KV cache: layer " + str(static_cast<int64_t>(layer)) +
                     " does not hold position " + str(next) + " of sequence " + str(seq));
  storage_.read(layer, held, out);
}

void KvCache::write_cells(size_t layer, int64_t n, const uint8_t* cells) {
  check_pending("write_cells");
  storage_.write(layer, slots(layer).last(static_cast<size_t>(n)), cells);
}

std::vector<KvGroup> KvCache::groups() const {
  std::vector<KvGroup> all;
  for (const Group& g : groups_)
    all.push_back({g.cells.window(), g.cells.capacity(), g.cells.used()});
  return all;
}

std::vector<std::pair<int32_t, int32_t>> KvCache::cells(size_t group, int seq) const {
  check_sequence(seq);
  std::vector<std::pair<int32_t, int32_t>> all;
  for (const Run& r : groups_.at(group).cells.sequence(seq).all())
    for (int32_t p = r.position; r.held() && p < r.end(); ++p) all.emplace_back(p, r.slot_at(p));
  return all;
}

void KvCache::check() const {
  // The positions of a sequence, in a group that may have evicted some: runs that touch are one.
  const auto positions = [](const Runs& runs) {
    std::vector<std::pair<int64_t, int64_t>> ranges;
    for (const Run& r : runs.all())
      if (!ranges.empty() && ranges.back().second == r.position)
        ranges.back().second = r.end();
      else
        ranges.emplace_back(r.position, r.end());
    return ranges;
  };
  for (const Group& group : groups_) {
    group.cells.check();
    for (int s = 0; s < config_.n_seq_max; ++s)
      if (positions(group.cells.sequence(s)) != positions(runs(s)))
        throw Error("KV cache: groups disagree about the positions of sequence " + str(s));
  }
}

}  // namespace pyflow
