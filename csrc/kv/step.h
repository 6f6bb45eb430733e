// The pending rows, and which of them share a view.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kv/sequence_set.h"

namespace pyflow {

struct KvRow {
  int32_t position;
  SequenceSet sequences;
};

namespace kv {

// The parent of a row without one among the pending rows.
inline constexpr int32_t kNoParent = -1;

// A pending row that becomes a cell of a sequence.
struct Accepted {
  int32_t row;
  int seq;
};

// Rows that see prefixes of one list of cells: rows with equal sequences, or on one branch of a
// tree. The pending rows in the list are the same in every group.
struct Peers {
  SequenceSet sequences;
  std::vector<int32_t> seen;  // pending rows in the list, ascending in position
  bool lasting;               // it is a sequence's own list, kept from step to step
};

class Step {
 public:
  explicit Step(int64_t n_batch) {
    rows_.reserve(static_cast<size_t>(n_batch));
    by_position_.reserve(static_cast<size_t>(n_batch));
    peers_of_.reserve(static_cast<size_t>(n_batch));
  }

  // Without parents, rows see each other by sequences and positions; with parents, only their
  // ancestors: parents[i] is the row that row i follows.
  void add(std::span<const KvRow> rows, std::span<const int32_t> parents) {
    rows_.insert(rows_.end(), rows.begin(), rows.end());
    parents_.insert(parents_.end(), parents.begin(), parents.end());
    by_position_.resize(rows_.size());
    for (size_t i = 0; i < rows_.size(); ++i) by_position_[i] = static_cast<int32_t>(i);
    std::sort(by_position_.begin(), by_position_.end(), [this](int32_t a, int32_t b) {
      return row(a).position != row(b).position ? row(a).position < row(b).position : a < b;
    });
  }
  void clear() {
    rows_.clear();
    parents_.clear();
  }

  // Sorts the checked rows into peers.
  void group_peers() {
    n_peers_ = 0;
    peers_of_.resize(rows_.size());
    if (is_tree()) return group_branches();
    for (size_t i = 0; i < rows_.size(); ++i) {
      const bool as_before = i > 0 && rows_[i].sequences == rows_[i - 1].sequences;
      peers_of_[i] = as_before ? peers_of_[i - 1] : find_peers(rows_[i].sequences);
    }
    for (Peers& p : std::span(peers_).first(n_peers_)) {
      p.lasting = p.sequences.size() == 1;
      p.seen.clear();
      for (int32_t r : by_position_)
        if (p.sequences.subset_of(row(r).sequences)) p.seen.push_back(r);
    }
  }

  bool empty() const { return rows_.empty(); }
  bool is_tree() const { return !parents_.empty(); }
  int32_t parent(size_t row) const { return is_tree() ? parents_[row] : kNoParent; }
  std::span<const KvRow> rows() const { return rows_; }
  const KvRow& row(int32_t i) const { return rows_[static_cast<size_t>(i)]; }
  std::span<const int32_t> by_position() const { return by_position_; }
  std::span<const Peers> peers() const { return std::span(peers_).first(n_peers_); }
  size_t peers_of(size_t row) const { return peers_of_[row]; }

 private:
  size_t find_peers(const SequenceSet& sequences) {
    for (size_t i = 0; i < n_peers_; ++i)
      if (peers_[i].sequences == sequences) return i;
    return new_peers(sequences);
  }

  size_t new_peers(const SequenceSet& sequences) {
    if (n_peers_ == peers_.size()) peers_.emplace_back();
    peers_[n_peers_].sequences = sequences;
    return n_peers_++;
  }

  // Peers are the branches from a root to a leaf. Scan rows backwards. A row not yet visited is a
  // leaf; walk to its root and claim unclaimed rows for this branch. For example, parents {-1, 0,
  // 1, 0}: row 3 is a leaf and claims 3 and 0; row 2 is one and claims 2 and 1, and sees {0, 1, 2}.
  void group_branches() {
    constexpr size_t kNone = SIZE_MAX;
    std::fill(peers_of_.begin(), peers_of_.end(), kNone);
    for (auto leaf = static_cast<int32_t>(rows_.size()) - 1; leaf >= 0; --leaf) {
      if (peers_of_[static_cast<size_t>(leaf)] != kNone) continue;
      const size_t branch = new_peers(row(leaf).sequences);
      Peers& p = peers_[branch];
      p.seen.clear();
      p.lasting = false;
      for (int32_t r = leaf; r != kNoParent; r = parents_[static_cast<size_t>(r)]) {
        size_t& peers = peers_of_[static_cast<size_t>(r)];
        // The first branch to reach a root keeps the sequence's own list.
        if (peers == kNone && parents_[static_cast<size_t>(r)] == kNoParent)
          p.lasting = p.sequences.size() == 1;
        if (peers == kNone) peers = branch;
        p.seen.push_back(r);
      }
      std::reverse(p.seen.begin(), p.seen.end());
    }
  }

  std::vector<KvRow> rows_;
  std::vector<int32_t> parents_;  // of a tree's rows
  std::vector<int32_t> by_position_;
  std::vector<Peers> peers_;  // never shrinks, so that a steady step does not allocate
  size_t n_peers_ = 0;
  std::vector<size_t> peers_of_;
};

}  // namespace kv
}  // namespace pyflow
