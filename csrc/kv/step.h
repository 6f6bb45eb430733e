// The rows in flight, and which of them share a view.
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

// Rows with equal sequences see prefixes of one list of cells; which pending rows are in it is the
// same in every group.
struct Peers {
  SequenceSet sequences;
  std::vector<int32_t> seen;  // pending rows that these sequences see, ascending in position
};

class Step {
 public:
  explicit Step(int64_t n_batch) {
    rows_.reserve(static_cast<size_t>(n_batch));
    by_position_.reserve(static_cast<size_t>(n_batch));
    peers_of_.reserve(static_cast<size_t>(n_batch));
  }

  void set(std::span<const KvRow> rows) {
    rows_.assign(rows.begin(), rows.end());
    by_position_.resize(rows.size());
    for (size_t i = 0; i < rows.size(); ++i) by_position_[i] = static_cast<int32_t>(i);
    std::sort(by_position_.begin(), by_position_.end(), [this](int32_t a, int32_t b) {
      return row(a).position != row(b).position ? row(a).position < row(b).position : a < b;
    });
  }
  void clear() { rows_.clear(); }

  // Sorts the rows, already checked, into peers.
  void group_peers() {
    n_peers_ = 0;
    peers_of_.resize(rows_.size());
    for (size_t i = 0; i < rows_.size(); ++i) {
      const bool as_before = i > 0 && rows_[i].sequences == rows_[i - 1].sequences;
      peers_of_[i] = as_before ? peers_of_[i - 1] : find_peers(rows_[i].sequences);
    }
    for (Peers& p : std::span(peers_).first(n_peers_)) {
      p.seen.clear();
      for (int32_t r : by_position_)
        if (p.sequences.subset_of(row(r).sequences)) p.seen.push_back(r);
    }
  }

  bool empty() const { return rows_.empty(); }
  std::span<const KvRow> rows() const { return rows_; }
  const KvRow& row(int32_t i) const { return rows_[static_cast<size_t>(i)]; }
  std::span<const int32_t> by_position() const { return by_position_; }
  std::span<const Peers> peers() const { return std::span(peers_).first(n_peers_); }
  size_t peers_of(size_t row) const { return peers_of_[row]; }

 private:
  size_t find_peers(const SequenceSet& sequences) {
    for (size_t i = 0; i < n_peers_; ++i)
      if (peers_[i].sequences == sequences) return i;
    if (n_peers_ == peers_.size()) peers_.emplace_back();
    peers_[n_peers_].sequences = sequences;
    return n_peers_++;
  }

  std::vector<KvRow> rows_;
  std::vector<int32_t> by_position_;
  std::vector<Peers> peers_;  // never shrinks, so that a steady step does not allocate
  size_t n_peers_ = 0;
  std::vector<size_t> peers_of_;
};

}  // namespace kv
}  // namespace pyflow
