// Which cells the rows of a step see, as a device takes it: kernels/attention.dev.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/table.h"

namespace pyflow::device {

// Cells of runs [first, last) at positions [begin, end). The row's own position is end - 1; a row
// that sees nothing is all zeros.
struct View {
  int32_t first, last, begin, end;
};

// Consecutive positions in consecutive slots.
struct ViewRun {
  int32_t position, slot, n, unused;
};

struct ViewTable {
  std::vector<View> views;  // by row
  std::vector<ViewRun> runs;
  // Blocks of kLogicalBlock positions between the first and the last cell of a row, at most; the
  // same of spans.
  int64_t most_blocks = 0, most_spans = 0;
};

// Rows whose views point into one array, as those of a prompt do, share its runs.
ViewTable view_table(std::span<const RowView> rows);

}  // namespace pyflow::device
