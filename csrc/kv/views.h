// What each pending row of a group sees, as lists of slots in position order.
//
// A sequence keeps its list from step to step and appends to it: a row that belongs to that
// sequence alone points into the list, so a decode step costs one entry and the rows of a prefill
// chunk share one array. Rows that belong to several sequences get a list per distinct set, and
// those of a tree one per branch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/table.h"
#include "kv/runs.h"
#include "kv/step.h"

namespace pyflow::kv {

class Views {
 public:
  Views(int64_t window, int64_t capacity, int n_seq_max, int64_t n_batch, bool chunked);

  void build(const Step& step, std::span<const Runs> sequences, std::span<const int32_t> slots);
  std::span<const RowView> rows() const { return rows_; }

  // The cells of a sequence at `position` and above have changed, or are about to.
  void cut(int seq, int64_t position);
  // The cells below `position` are gone.
  void drop_below(int seq, int64_t position);
  // Throws Error unless what is kept of a sequence's list agrees with its runs.
  void check(int seq, const Runs& runs) const;

 private:
  class List {
   public:
    // The index of the first entry at or above `position`.
    size_t lower(int64_t position) const;
    void reserve(size_t n);
    void push(const Run& run);
    void cut(int64_t position);
    void drop_below(int64_t position);
    void settle() { kept_ = positions_.size(); }
    void unsettle();
    RowView view(size_t first, size_t last) const {
      return {slots_.data() + first, positions_.data() + first, static_cast<int64_t>(last - first)};
    }
    RowView kept() const { return view(head_, kept_); }

   private:
    std::vector<int32_t> positions_, slots_;
    size_t head_ = 0;  // entries before it are gone
    size_t kept_ = 0;  // entries from it on were only right during the last step
  };

  void fill(List& list, std::span<const Run> committed, const Peers& peers, const Step& step,
            std::span<const int32_t> slots) const;
  std::span<const Run> common(const SequenceSet& set, std::span<const Runs> sequences);

  // The lowest position that a row at `position` may see.
  int64_t lowest(int64_t position) const;

  int64_t window_;
  bool chunked_;
  size_t reserve_;
  std::vector<List> own_;     // per sequence, kept between steps
  std::vector<List> shared_;  // per other set of sequences or branch, rebuilt by each step
  std::vector<const List*> list_of_peers_;
  std::vector<RowView> rows_;
  std::vector<Run> common_, scratch_;
};

}  // namespace pyflow::kv
