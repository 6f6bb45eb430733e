#include "kernels/dispatch.h"

#if defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>

#include "core/errors.h"
#include "core/message.h"
#include "kernels/tiles/permission.h"

namespace pyflow {

#define PYFLOW_ISA_LINE(name, ...) const KernelTable* kernels_##name() noexcept;
#define PYFLOW_TILE_LINE(name, ...) const KernelTable* kernels_##name() noexcept;
#include "kernels/isas.def"
#undef PYFLOW_ISA_LINE
#if defined(__x86_64__)
const KernelTable* kernels_amx_emulated() noexcept;
#endif

namespace {

struct Entry {
  const char* name;
  const KernelTable* (*table)();
  std::vector<std::string_view> needs;
  bool tiles = false;
};
std::vector<Entry> entries() {
  return {
#define PYFLOW_ISA_LINE(name, ...) {#name, kernels_##name, {__VA_ARGS__}},
#define PYFLOW_TILE_LINE(name, base, ...) {#name, kernels_##name, {__VA_ARGS__}, true},
#include "kernels/isas.def"
#undef PYFLOW_ISA_LINE
  };
}

#if defined(__x86_64__)
// The parts of a register file that the operating system saves, as bits of XCR0. A CPU that has wider
// registers may not use them if the system would lose them.
constexpr uint64_t kNoState = 0;
constexpr uint64_t kYmmState = 0x06;      // xmm, upper halves of ymm
constexpr uint64_t kZmmState = 0xe6;      // those, masks, upper halves of zmm, zmm16 to 31
constexpr uint64_t kTileState = 0x60000;  // tiles, their configuration: no_tiles() asks for it

enum Register { kEax, kEbx, kEcx, kEdx };

// By cpuid and xgetbv alone: what __builtin_cpu_supports reads is empty where the compiler's runtime
// does not fill it, as that of zig, and clang 16 does not know all names.
struct Feature {
  const char* name;
  unsigned leaf, subleaf;
  Register where;
  int bit;
  uint64_t state;
};
constexpr Feature kFeatures[] = {
    {"sse4.2", 1, 0, kEcx, 20, kNoState},      {"avx", 1, 0, kEcx, 28, kYmmState},
    {"avx2", 7, 0, kEbx, 5, kYmmState},        {"fma", 1, 0, kEcx, 12, kYmmState},
    {"f16c", 1, 0, kEcx, 29, kYmmState},       {"avxvnni", 7, 1, kEax, 4, kYmmState},
    {"avx512f", 7, 0, kEbx, 16, kZmmState},    {"avx512bw", 7, 0, kEbx, 30, kZmmState},
    {"avx512dq", 7, 0, kEbx, 17, kZmmState},   {"avx512vl", 7, 0, kEbx, 31, kZmmState},
    {"avx512vnni", 7, 0, kEcx, 11, kZmmState}, {"avx512vbmi", 7, 0, kEcx, 1, kZmmState},
    {"avx512bf16", 7, 1, kEax, 5, kZmmState},  {"amx_bf16", 7, 0, kEdx, 22, kNoState},
    {"amx_tile", 7, 0, kEdx, 24, kNoState},    {"amx_int8", 7, 0, kEdx, 25, kNoState},
};

uint64_t saved_state() {
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0;  // OSXSAVE: xgetbv may be used
  asm("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return uint64_t{d} << 32 | a;
}

bool has(const Feature& feature, uint64_t saved) {
  unsigned r[4];
  return (saved & feature.state) == feature.state &&
         __get_cpuid_count(feature.leaf, feature.subleaf, &r[kEax], &r[kEbx], &r[kEcx], &r[kEdx]) &&
         (r[feature.where] >> feature.bit & 1);
}
#endif

// The features of this CPU that matter for choosing kernels, named much as in /proc/cpuinfo.
std::vector<std::string> detect() {
  std::vector<std::string> found;
  [[maybe_unused]] const auto add = [&](const char* name, bool there) {
    if (there) found.emplace_back(name);
  };
#if defined(__x86_64__)
  const uint64_t saved = saved_state();
  for (const Feature& feature : kFeatures) add(feature.name, has(feature, saved));
#elif defined(__aarch64__)
  add("asimddp", getauxval(AT_HWCAP) & HWCAP_ASIMDDP);
#endif
  return found;
}

// Asked once: on a virtual machine every cpuid traps to the hypervisor.
const std::vector<std::string>& features() {
  static const std::vector<std::string> found = detect();
  return found;
}

// On Zen 4 the hardware prefetchers read tiles fastest without help. An Intel core read at two
// thirds of its bandwidth if everything was prefetched into the first-level cache: probably because
// it has few fill buffers for it (16 in Golden Cove) and three times as many for the second level;
// no counters were read. Measured on one Xeon only.
Prefetch measured_prefetches() {
#if defined(__x86_64__)
  unsigned a, b, c, d;
  if (!__get_cpuid(0, &a, &b, &c, &d)) return Prefetch::kNear;
  if (b == signature_INTEL_ebx && c == signature_INTEL_ecx && d == signature_INTEL_edx)
    return Prefetch::kFar;
  const bool is_amd = b == signature_AMD_ebx && c == signature_AMD_ecx && d == signature_AMD_edx;
  if (!is_amd || !__get_cpuid(1, &a, &b, &c, &d)) return Prefetch::kNear;
  const std::vector<std::string>& found = features();  // Zen 3 is of the same family
  const bool is_zen_4 = (a >> 8 & 0xf) + (a >> 20 & 0xff) == 0x19 &&
                        std::find(found.begin(), found.end(), "avx512f") != found.end();
  return is_zen_4 ? Prefetch::kNone : Prefetch::kNear;
#else
  return Prefetch::kNear;
#endif
}

constexpr std::string_view kPrefetchNames[] = {"none", "near", "far"};

Prefetch chosen_prefetches() {
  const char* forced = std::getenv("PYFLOW_PREFETCH");
  const std::string_view value = forced ? forced : "";
  if (value.empty()) return measured_prefetches();
  if (value.size() != 1 || value[0] < '0' || value[0] > '2')
    throw VariableError("PYFLOW_PREFETCH=" + printable(value) +
                        ": expected 0 (none), 1 (near) or 2 (far)");
  return static_cast<Prefetch>(value[0] - '0');
}

// By its features alone.
bool has_instructions(const Entry& entry) {
  const std::vector<std::string>& found = features();
  return std::all_of(entry.needs.begin(), entry.needs.end(), [&](std::string_view need) {
    return std::find(found.begin(), found.end(), need) != found.end();
  });
}

#if defined(__x86_64__)
std::string refusal_of_tiles() {
  if ((saved_state() & kTileState) != kTileState)
    return "the system does not save the registers of AMX: Linux 5.16 or newer does";
  if (std::string refusal = ask_for_tiles(); !refusal.empty()) return refusal;
  for (const Entry& e : entries())
    if (e.tiles && has_instructions(e) && !e.table()->tiles_agree())
      return "its tiles give other sums than those that the kernels were tested with";
  return "";
}
#endif

// Why a CPU with AMX does not use it, or nothing. Asked once, before anything is multiplied.
const std::string& no_tiles() {
#if defined(__x86_64__)
  static const std::string refusal = refusal_of_tiles();
#else
  static const std::string refusal;
#endif
  return refusal;
}

bool runnable(const Entry& entry) {
  return has_instructions(entry) && (!entry.tiles || no_tiles().empty());
}

}  // namespace

// What amx_emulated is built on (kernels/tile_isa.cpp): the best table without tiles.
const KernelTable* kernels_best() noexcept {
  const KernelTable* best = nullptr;
  for (const Entry& e : entries())
    if (!e.tiles && runnable(e)) best = e.table();
  return best;
}

std::vector<const KernelTable*> runnable_tables() {
  std::vector<const KernelTable*> tables;
  for (const Entry& e : entries())
    if (runnable(e)) tables.push_back(e.table());
  return tables;
}

const KernelTable& kernel_table(std::string_view name) {
#if defined(__x86_64__)
  if (name == "amx_emulated") return *kernels_amx_emulated();
#endif
  std::string known, why = "this architecture has no such kernel table";
  for (const Entry& e : entries()) {
    if (runnable(e)) {
      if (name == e.name) return *e.table();
      known += std::string(known.empty() ? "" : ", ") + e.name;
    } else if (name == e.name) {
      why = has_instructions(e) ? no_tiles() : "this CPU lacks the instructions";
    }
  }
  throw VariableError("PYFLOW_ISA=" + printable(name) + ": " + why + "; this CPU runs " + known);
}

const KernelTable& kernel_table() {
  prefetches();
  if (const char* forced = std::getenv("PYFLOW_ISA"); forced && *forced)
    return kernel_table(forced);
  return *runnable_tables().back();
}

Prefetch prefetches() {
  static const Prefetch chosen = chosen_prefetches();
  return chosen;
}

std::string_view prefetch_name(Prefetch prefetch) {
  return kPrefetchNames[static_cast<size_t>(prefetch)];
}

Prefetch prefetch_of(std::string_view name) {
  for (const Prefetch p : {Prefetch::kNone, Prefetch::kNear, Prefetch::kFar})
    if (name == prefetch_name(p)) return p;
  throw UnsupportedError("prefetch: expected none, near or far, found " + printable(name));
}

CpuInfo cpu_info() {
  CpuInfo info;
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; info.model.empty() && std::getline(file, line);) {
    const auto colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos)
      info.model = line.substr(colon + 2);
  }
  info.features = features();
  for (const Entry& e : entries())
    if (e.tiles && has_instructions(e)) info.no_tiles = no_tiles();
  return info;
}

}  // namespace pyflow
