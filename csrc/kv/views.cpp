#include "kv/views.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "core/errors.h"

namespace pyflow::kv {

size_t Views::List::lower(int64_t position) const {
  // Most questions are about the end of the text.
  if (positions_.size() == head_ || positions_.back() < position) return positions_.size();
  const auto first = positions_.begin() + static_cast<ptrdiff_t>(head_);
  return static_cast<size_t>(std::lower_bound(first, positions_.end(), position) -
                             positions_.begin());
}

void Views::List::reserve(size_t n) {
  positions_.reserve(n);
  slots_.reserve(n);
}

void Views::List::push(const Run& run) {
  const size_t n = positions_.size();
  const auto more = static_cast<size_t>(run.n);
  // Once half of it is gone the list moves to the front instead of growing: a stream through a
  // window needs no new memory.
  if (n + more > positions_.capacity() && head_ > n / 2) {
    const auto gone = static_cast<ptrdiff_t>(head_);
    positions_.erase(positions_.begin(), positions_.begin() + gone);
    slots_.erase(slots_.begin(), slots_.begin() + gone);
    kept_ -= head_;
    head_ = 0;
    return push(run);
  }
  positions_.resize(n + more);
  slots_.resize(n + more);
  std::iota(positions_.begin() + static_cast<ptrdiff_t>(n), positions_.end(), run.position);
  std::iota(slots_.begin() + static_cast<ptrdiff_t>(n), slots_.end(), run.slot);
}

void Views::List::unsettle() {
  positions_.resize(kept_);
  slots_.resize(kept_);
}

void Views::List::cut(int64_t position) {
  unsettle();
  kept_ = lower(position);
  unsettle();
}

void Views::List::drop_below(int64_t position) {
  unsettle();
  head_ = lower(position);
}

Views::Views(int64_t window, int64_t capacity, int n_seq_max, int64_t n_batch, bool chunked)
    : window_(window),
      chunked_(chunked),
      // Twice what a sequence needs in its window, so that moving to the front is rare.
      reserve_(static_cast<size_t>(window ? 2 * std::min(capacity, window + n_batch) : capacity)),
      own_(static_cast<size_t>(n_seq_max)) {
  rows_.reserve(static_cast<size_t>(n_batch));
}

void Views::build(const Step& step, std::span<const Runs> sequences,
                  std::span<const int32_t> slots) {
  size_t n_shared = 0;
  for (const Peers& p : step.peers()) n_shared += !p.lasting;
  if (shared_.size() < n_shared) shared_.resize(n_shared);
  list_of_peers_.clear();
  n_shared = 0;
  for (const Peers& p : step.peers()) {
    const auto seq = static_cast<size_t>(p.sequences.first());
    const bool alone = p.sequences.size() == 1;
    List& list = p.lasting ? own_[seq] : shared_[n_shared++];
    list.reserve(reserve_);
    if (!p.lasting) list.cut(0);
    fill(list, alone ? sequences[seq].all() : common(p.sequences, sequences), p, step, slots);
    list_of_peers_.push_back(&list);
  }
  rows_.clear();
  for (size_t r = 0; r < step.rows().size(); ++r) {
    const List& list = *list_of_peers_[step.peers_of(r)];
    const int64_t position = step.rows()[r].position;
    const size_t first = list.lower(lowest(position));
    rows_.push_back(list.view(first, list.lower(position + 1)));
  }
}

int64_t Views::lowest(int64_t position) const {
  if (window_ == 0) return 0;
  return chunked_ ? position / window_ * window_ : position - window_ + 1;
}

// The list holds all committed cells below the first pending row, kept for later steps, and from
// there on committed and pending cells merged, for this step alone.
void Views::fill(List& list, std::span<const Run> committed, const Peers& peers, const Step& step,
                 std::span<const int32_t> slots) const {
  const auto position = [&](int32_t row) { return step.row(row).position; };
  const int64_t first = position(peers.seen.front());
  list.cut(first);
  const RowView kept = list.kept();
  const int64_t from = kept.n ? int64_t{kept.positions[kept.n - 1]} + 1 : 0;
  auto run = std::partition_point(committed.begin(), committed.end(),
                                  [from](const Run& r) { return r.end() <= from; });
  for (; run != committed.end() && run->position < first; ++run) {
    if (run->held() && std::min(run->end(), first) > from) list.push(run->clip(from, first));
    if (run->end() > first) break;
  }
  list.settle();
  int64_t next = first;  // the committed cells below it are in the list
  const auto push_until = [&](int64_t end) {
    for (; run != committed.end() && run->position < end; ++run) {
      if (run->held() && std::min(run->end(), end) > next) list.push(run->clip(next, end));
      if (run->end() > end) break;
    }
    next = end;
  };
  for (int32_t row : peers.seen) {
    push_until(position(row));
    list.push({position(row), slots[static_cast<size_t>(row)], 1});
  }
  push_until(int64_t{1} << 31);
}

// The cells that every sequence of the set holds.
std::span<const Run> Views::common(const SequenceSet& set, std::span<const Runs> sequences) {
  common_.clear();
  const auto lowest = static_cast<size_t>(set.first());
  for (const Run& r : sequences[lowest].all())
    if (r.held()) common_.push_back(r);
  for (int s : set)
    if (static_cast<size_t>(s) != lowest)
      intersect(common_, sequences[static_cast<size_t>(s)], scratch_);
  return common_;
}

void Views::cut(int seq, int64_t position) { own_[static_cast<size_t>(seq)].cut(position); }

void Views::drop_below(int seq, int64_t position) {
  own_[static_cast<size_t>(seq)].drop_below(position);
}

void Views::check(int seq, const Runs& runs) const {
  const RowView kept = own_[static_cast<size_t>(seq)].kept();
  int64_t i = 0;
  for (const Run& r : runs.all())
    for (int32_t p = r.position; r.held() && p < r.end() && i < kept.n; ++p, ++i)
      if (kept.positions[i] != p || kept.slots[i] != r.slot_at(p))
        throw Error("the list of sequence " + std::to_string(seq) +
                    " disagrees with its runs at position " + std::to_string(p));
  if (i < kept.n)
    throw Error("the list of sequence " + std::to_string(seq) + " is longer than its runs");
}

}  // namespace pyflow::kv
