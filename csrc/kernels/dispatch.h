// Which kernel tables this CPU can run, and the one to use.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/table.h"

namespace pyflow {

// Tables that this CPU can run, best last.
std::vector<const KernelTable*> runnable_tables();

// The best runnable table, or the one that PYFLOW_ISA names. Throws VariableError if that table
// does not exist or this CPU cannot run it.
const KernelTable& kernel_table();

// The table of that name: one of those, or amx_emulated, for tests, which has the arithmetic of amx
// by tiles in software on any x86-64 CPU. Throws like kernel_table().
const KernelTable& kernel_table(std::string_view name);

// How kernels prefetch weights: as measured best for this CPU (docs/performance.md), or as
// PYFLOW_PREFETCH says, 0 to 2. With more than two rows, which wait for arithmetic, kernels always
// prefetch. Throws VariableError for another value, as kernel_table() does before anything is
// computed.
Prefetch prefetches();
// "none", "near", "far".
std::string_view prefetch_name(Prefetch prefetch);
// Throws UnsupportedError for another name.
Prefetch prefetch_of(std::string_view name);

struct CpuInfo {
  std::string model;                  // "AMD EPYC ..."
  std::vector<std::string> features;  // those that matter to a kernel choice
  std::string no_tiles;               // why a CPU with AMX does not use it, or nothing
};
CpuInfo cpu_info();

}  // namespace pyflow
