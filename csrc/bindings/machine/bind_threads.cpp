// Threads and the memory nodes that they run on.
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "core/errors.h"
#include "core/placement.h"
#include "core/thread_pool.h"

namespace pyflow {
namespace {

Numa numa_of(const std::string& mode) {
  if (mode == "off") return Numa::Off;
  if (mode == "interleave") return Numa::Interleave;
  if (mode == "local") return Numa::Local;
  if (mode == "mirror") return Numa::Mirror;
  throw UnsupportedError("numa '" + mode + "': expected off, interleave, local or mirror");
}

// number, CPUs, number of threads
using Node = std::tuple<int, std::vector<int>, int>;

std::shared_ptr<Placement> make_placement(const std::string& mode, const std::vector<Node>& nodes) {
  std::vector<NumaNode> parsed;
  for (const auto& [number, cpus, n_threads] : nodes) parsed.push_back({number, cpus, n_threads});
  return std::make_shared<Placement>(numa_of(mode), std::move(parsed));
}

}  // namespace

void register_threads(py::module_& m) {
  m.attr("MAX_THREADS") = kMaxThreads;

  py::class_<Placement, std::shared_ptr<Placement>>(m, "Placement")
      .def(py::init(&make_placement), py::arg("mode"), py::arg("nodes"))
      .def_property_readonly("n_copies", &Placement::n_copies)
      .def_property_readonly("refusals", &Placement::refusals);

  py::class_<ThreadPool, std::shared_ptr<ThreadPool>>(m, "ThreadPool")
      .def(py::init<int, bool>(), py::arg("n_threads"), py::arg("adapts") = true)
      .def(py::init<int, bool, std::shared_ptr<Placement>>(), py::arg("n_threads"),
           py::arg("adapts") = true, py::kw_only(), py::arg("placement").none(false))
      .def_property_readonly("n_threads", &ThreadPool::size)
      .def_property_readonly("placement", &ThreadPool::placement);
}

}  // namespace pyflow
