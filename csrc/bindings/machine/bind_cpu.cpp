// What this machine is and what it can do.
#include "bench/probe.h"
#include "bindings/bind.h"
#include "bindings/convert.h"
#include "core/buffer.h"
#include "core/placement.h"
#include "core/thread_pool.h"
#include "kernels/dispatch.h"

#include <algorithm>
#include <vector>

namespace pyflow {
namespace {

// Of fresh memory, each page first touched by a thread that will read it.
double read_bandwidth(ThreadPool& pool, int64_t nbytes, int repeats) {
  const Buffer buffer(static_cast<size_t>(std::max<int64_t>(64, nbytes)), "bandwidth probe");
  const auto size = static_cast<int64_t>(buffer.size());
  pool.run([&](Team& team) {
    const int64_t begin = size * team.rank() / team.size();
    std::fill(buffer.data() + begin, buffer.data() + size * (team.rank() + 1) / team.size(),
              uint8_t{1});
  });
  const std::vector<Bytes> parts = {{buffer.data(), buffer.size()}};
  return read_rate(pool, kernel_table(), std::vector(pool.placement().n_copies(), parts), repeats,
                   check_signals);
}

}  // namespace

void register_cpu(py::module_& m) {
  m.def("cpu_info", [] {
    const CpuInfo info = cpu_info();
    std::vector<std::string> tables;
    for (const KernelTable* t : runnable_tables()) tables.emplace_back(t->name);
    py::dict d;
    d["model"] = info.model;
    d["features"] = info.features;
    d["tables"] = tables;
    d["no_tiles"] = info.no_tiles;
    d["isa"] = kernel_table().name;
    d["prefill"] = prefill_of(kernel_table().has_prefill());
    d["prefetches"] = prefetch_name(prefetches());
    return d;
  });
  m.def("memory_policy", &memory_policy);
  m.def("binding_refusal", &binding_refusal, py::arg("nodes"));
  m.def("read_bandwidth", &read_bandwidth, py::arg("pool"), py::arg("nbytes"), py::arg("repeats"),
        py::call_guard<py::gil_scoped_release>());
}

}  // namespace pyflow
