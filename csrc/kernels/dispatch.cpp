#include "kernels/dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <cstdlib>
#include <cstring>
#include <fstream>

#include "core/errors.h"

namespace pyflow {

const KernelTable* kernels_scalar();
#if defined(__x86_64__)
const KernelTable* kernels_avx2();
const KernelTable* kernels_avx512();
#endif

namespace {

#if defined(__x86_64__)
// clang 16's __builtin_cpu_supports does not know the name.
bool has_f16c() {
  unsigned a, b, c, d;
  return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

struct Entry {
  const char* name;
  bool runnable;
  const KernelTable* (*table)();
};

// One line per instruction set, best last. __builtin_cpu_supports also asks the operating system
// whether it saves the wider registers.
std::vector<Entry> detect() {
  std::vector<Entry> all = {{"scalar", true, kernels_scalar}};
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  all.push_back({"avx2", avx2, kernels_avx2});
  all.push_back({"avx512", avx512, kernels_avx512});
#endif
  return all;
}

// Asked once: on a virtual machine every cpuid is a trip to the hypervisor.
const std::vector<Entry>& entries() {
  static const std::vector<Entry> all = detect();
  return all;
}

}  // namespace

std::vector<const KernelTable*> runnable_tables() {
  std::vector<const KernelTable*> tables;
  for (const Entry& e : entries())
    if (e.runnable) tables.push_back(e.table());
  return tables;
}

const KernelTable& kernel_table(std::string_view name) {
  std::string known;
  for (const Entry& e : entries()) {
    if (name == e.name) {
      if (e.runnable) return *e.table();
      throw UnsupportedError("PYFLOW_ISA=" + std::string(name) +
                             ": this CPU lacks the instructions; unset it or choose another");
    }
    if (e.runnable) known += std::string(known.empty() ? "" : ", ") + e.name;
  }
  throw UnsupportedError("PYFLOW_ISA=" + std::string(name) +
                         ": no such kernel table; this CPU runs " + known);
}

const KernelTable& kernel_table() {
  if (const char* forced = std::getenv("PYFLOW_ISA"); forced && *forced)
    return kernel_table(forced);
  return *runnable_tables().back();
}

CpuInfo cpu_info() {
  CpuInfo info;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; info.model.empty() && std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos)
      info.model = line.substr(colon + 2);
  }
#if defined(__x86_64__)
#define PYFLOW_FEATURE(f) \
  if (__builtin_cpu_supports(f)) info.features.push_back(f)
  PYFLOW_FEATURE("sse4.2");
  PYFLOW_FEATURE("avx");
  PYFLOW_FEATURE("avx2");
  PYFLOW_FEATURE("fma");
  if (has_f16c()) info.features.push_back("f16c");
  PYFLOW_FEATURE("avx512f");
  PYFLOW_FEATURE("avx512bw");
  PYFLOW_FEATURE("avx512vl");
  PYFLOW_FEATURE("avx512vnni");
  PYFLOW_FEATURE("avx512vbmi");
  PYFLOW_FEATURE("avx512bf16");
#undef PYFLOW_FEATURE
#endif
  return info;
}

}  // namespace pyflow
