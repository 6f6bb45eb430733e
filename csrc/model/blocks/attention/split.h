// How the threads of a team share attention of a step: tiles of rows and heads of keys, and where
// these are few, spans of positions, or parts of the query heads that share a head of keys. No cut
// changes a bit.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/thread_pool.h"
#include "kernels/table.h"
#include "model/step.h"

namespace pyflow {

class SplitAttention {
 public:
  // n_tiled: so many rows, the first ones, take prefill_attend.
  SplitAttention(const Step& s, const Team& team, const AttendArgs& args, int64_t n_tiled)
      : s_(s), args_(args), threads_(team.size()), n_tiled_(n_tiled) {
    const int64_t n_rows = s.n_rows - n_tiled;
    if (threads_ == 1) return;
    if (n_rows >= kSplitRows) {
      while (parts_ < group() && n_tiles(n_rows, kRowTile) * parts_ < threads_) ++parts_;
      return;
    }
    int64_t cells = 0;
    for (int64_t r = n_tiled; r < s.n_rows; ++r) {
      n_spans_ = std::max(n_spans_, spans(args.views[r]));
      cells = std::max(cells, args.views[r].n);
    }
    if (n_rows * n_kv_heads() * n_spans_ * partial_floats() > s.partial_capacity) n_spans_ = 1;
    if (n_spans_ == 1 && cells >= kCellsWorthABarrier)
      while (parts_ < group() && parts_ * n_kv_heads() % threads_) ++parts_;
  }

  // Whether rows of prompts, spans and parts are left alone, so that a head of keys is one unit.
  bool whole() const { return n_tiled_ == 0 && n_spans_ == 1 && parts_ == 1; }

  // Called by every thread, when queries and cells are there; ends with a barrier. done(row, first,
  // last) is called when the outputs of query heads [first, last) of a row are there.
  template <class Done>
  void operator()(Team& team, Done&& done) const {
    const int64_t n_rows = s_.n_rows - n_tiled_;
    const Units tiled = prompts(), whole = {n_tiled_, n_spans_ == 1 ? s_.n_rows : n_tiled_,
                                            kRowTile, parts_, s_.kernels.attend};
    const int64_t n_prompts = n_units(tiled), n_all = n_prompts + n_units(whole),
                  n_spans = n_spans_ == 1 ? 0 : n_spans_, size = partial_floats();
    const auto partial = [&](int64_t row_head) { return s_.partials + row_head * n_spans * size; };
    team.for_each(n_all + n_rows * n_kv_heads() * n_spans, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (i < n_prompts) {
          attend(tiled, i, done);
        } else if (i < n_all) {
          attend(whole, i - n_prompts, done);
        } else {
          const int64_t row_head = (i - n_all) / n_spans, span = (i - n_all) % n_spans,
                        row = n_tiled_ + row_head / n_kv_heads();
          if (span < spans(args_.views[row]))
            s_.kernels.attend_span(args_, row, row_head % n_kv_heads(), span,
                                   partial(row_head) + span * size);
        }
      }
    });
    if (n_spans == 0) return;
    team.for_each(n_rows * n_kv_heads(), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = n_tiled_ + i / n_kv_heads(), head = i % n_kv_heads();
        s_.kernels.attend_merge(args_, row, head, partial(i), spans(args_.views[row]));
        done(row, head * group(), (head + 1) * group());
      }
    });
  }

 private:
  static constexpr int64_t kRowTile = 16;
  // The same for prompts by tiles, where it pays to write keys and values as tiles for many rows. A
  // team whose threads would be idle takes fewer.
  static constexpr int64_t kPromptRowTile = 64;
  // From so many cells on, splitting attention over more threads saves more than its barrier costs.
  static constexpr int64_t kCellsWorthABarrier = 64;

  // Attention of rows [first, last) in units that are computed by one thread each.
  struct Units {
    int64_t first, last, row_tile, parts;
    decltype(KernelTable::attend) kernel;
  };

  int64_t n_kv_heads() const { return args_.kv.n_kv_heads; }
  int64_t group() const { return args_.n_heads / n_kv_heads(); }
  int64_t partial_floats() const { return group() * (args_.kv.value_dim + 2); }
  int64_t n_tiles(int64_t n_rows, int64_t row_tile) const {
    return (n_rows + row_tile - 1) / row_tile * n_kv_heads();
  }
  int64_t n_units(const Units& units) const {
    return n_tiles(units.last - units.first, units.row_tile) * units.parts;
  }
  static int64_t spans(const RowView& v) {
    return v.n == 0 ? 0 : v.positions[v.n - 1] / kLogicalSpan - v.positions[0] / kLogicalSpan + 1;
  }

  Units prompts() const {
    Units units = {0, n_tiled_, kPromptRowTile, 1, s_.kernels.prefill_attend};
    while (units.row_tile > kRowTile && n_units(units) < 2 * threads_) units.row_tile /= 2;
    while (units.parts < group() && n_units(units) < threads_) ++units.parts;
    return units;
  }

  template <class Done>
  void attend(const Units& units, int64_t i, Done&& done) const {
    const int64_t parts = units.parts, head = i / parts % n_kv_heads(),
                  first = group() * (i % parts) / parts, last = group() * (i % parts + 1) / parts,
                  row = units.first + i / (n_kv_heads() * parts) * units.row_tile,
                  end_row = std::min(row + units.row_tile, units.last);
    units.kernel(part_of(head, first, last), row, end_row, head);
    for (int64_t r = row; r < end_row; ++r) done(r, head * group() + first, head * group() + last);
  }

  // The same for query heads [first, last) of those that share `kv_head` only.
  AttendArgs part_of(int64_t kv_head, int64_t first, int64_t last) const {
    // The kernel takes query heads from kv_head * (last - first) on.
    const int64_t shift = kv_head * (group() - (last - first)) + first;
    AttendArgs args = args_;
    args.n_heads = n_kv_heads() * (last - first);
    args.q += shift * args.kv.key_dim;
    args.out += shift * args.kv.value_dim;
    if (args.slopes) args.slopes += shift;
    if (args.sinks) args.sinks += shift;
    if (args.bias) args.bias += shift * (2 * args.bias_reach + 1);
    return args;
  }

  const Step& s_;
  const AttendArgs& args_;
  const int64_t threads_, n_tiled_;
  int64_t n_spans_ = 1, parts_ = 1;
};

}  // namespace pyflow
