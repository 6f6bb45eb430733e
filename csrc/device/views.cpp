#include "device/views.h"

#include <algorithm>
#include <functional>

namespace pyflow::device {
namespace {

// Whether b is a part of a, or begins inside it and goes on behind it: both are of one array.
bool overlaps(const RowView& a, const RowView& b) {
  const std::less<> less;
  return !less(b.slots, a.slots) && less(b.slots, a.slots + a.n) &&
         b.positions - a.positions == b.slots - a.slots;
}

// Adds the cells of a view as runs.
void add_runs(const RowView& view, std::vector<ViewRun>& runs) {
  for (int64_t i = 0, n; i < view.n; i += n) {
    n = 1;
    while (i + n < view.n && view.positions[i + n] == view.positions[i] + n &&
           view.slots[i + n] == view.slots[i] + n)
      ++n;
    runs.push_back({view.positions[i], view.slots[i], static_cast<int32_t>(n), 0});
  }
}

int64_t parts(const View& view, int64_t size) {
  return view.begin == view.end ? 0 : (view.end - 1) / size - view.begin / size + 1;
}

}  // namespace

ViewTable view_table(std::span<const RowView> rows) {
  ViewTable table;
  for (size_t r = 0; r < rows.size();) {
    RowView all = rows[r];
    size_t end = r + 1;
    for (; end < rows.size() && all.n > 0 && overlaps(all, rows[end]); ++end)
      all.n = std::max(all.n, rows[end].slots - all.slots + rows[end].n);
    const auto first = static_cast<int32_t>(table.runs.size());
    add_runs(all, table.runs);
    const auto last = static_cast<int32_t>(table.runs.size());
    for (; r < end; ++r) {
      const RowView& row = rows[r];
      const View view = row.n == 0
                            ? View{0, 0, 0, 0}
                            : View{first, last, row.positions[0], row.positions[row.n - 1] + 1};
      table.views.push_back(view);
      table.most_blocks = std::max(table.most_blocks, parts(view, kLogicalBlock));
      table.most_spans = std::max(table.most_spans, parts(view, kLogicalSpan));
    }
  }
  return table;
}

}  // namespace pyflow::device
