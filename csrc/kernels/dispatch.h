// Which kernel tables this CPU can run, and the one to use.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/table.h"

namespace pyflow {

// Tables that this CPU can run, best last.
std::vector<const KernelTable*> runnable_tables();

// The best runnable table, or the one that PYFLOW_ISA names. Throws UnsupportedError when
// PYFLOW_ISA names a table that does not exist or that this CPU cannot run.
const KernelTable& kernel_table();

// The table of that name. Throws like kernel_table().
const KernelTable& kernel_table(std::string_view name);

// How kernels prefetch weights, as this CPU was measured to want it (docs/performance.md), or as
// PYFLOW_PREFETCH says, 0 to 2; where they meet more than two rows, which wait for their
// arithmetic, they always do. Throws UnsupportedError for another value, as kernel_table() does
// before anything is computed.
Prefetch prefetches();
// "none", "near", "far".
std::string_view prefetch_name(Prefetch prefetch);
// Throws UnsupportedError for a name that is none.
Prefetch prefetch_of(std::string_view name);

struct CpuInfo {
  std::string model;                  // "AMD EPYC ..."
  std::vector<std::string> features;  // those that matter to a kernel choice
};
CpuInfo cpu_info();

}  // namespace pyflow
