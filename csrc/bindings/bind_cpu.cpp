// What this machine is and what it can do.
#include "bindings/bind.h"
#include "core/buffer.h"
#include "core/thread_pool.h"
#include "kernels/dispatch.h"

#include <time.h>

#include <algorithm>
#include <memory>

namespace pyflow {
namespace {

double seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Bytes per second of reading `nbytes` of fresh memory with all threads, the best of `repeats`.
double read_bandwidth(ThreadPool& pool, int64_t nbytes, int repeats) {
  constexpr int64_t kPiece = 1 << 20;
  const int64_t pieces = std::max<int64_t>(1, nbytes / kPiece);
  const Buffer buffer(static_cast<size_t>(pieces * kPiece), "bandwidth probe");
  const KernelTable& kernels = kernel_table();
  std::atomic<uint64_t> sink{0};
  pool.run([&](Team& team) {  // each page is first touched by a thread that will read it
    team.for_each(pieces, 1, [&](int64_t begin, int64_t end) {
      std::fill(buffer.data() + begin * kPiece, buffer.data() + end * kPiece, uint8_t{1});
    });
  });
  double best = 0;
  for (int i = 0; i < repeats; ++i) {
    const double start = seconds();
    pool.run([&](Team& team) {
      team.for_each(pieces, 1, [&](int64_t begin, int64_t end) {
        sink.fetch_xor(kernels.read_bytes(buffer.data() + begin * kPiece, (end - begin) * kPiece),
                       std::memory_order_relaxed);
      });
    });
    best = std::max(best, static_cast<double>(pieces * kPiece) / (seconds() - start));
  }
  return best;
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
    d["isa"] = kernel_table().name;
    return d;
  });
  m.def("read_bandwidth", &read_bandwidth, py::arg("pool"), py::arg("nbytes"), py::arg("repeats"),
        py::call_guard<py::gil_scoped_release>());
}

}  // namespace pyflow
