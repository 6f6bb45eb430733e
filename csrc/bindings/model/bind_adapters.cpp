// Adapters beside the matrices of a stage, and sets of them for a sequence.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/convert.h"
#include "bindings/model/spec.h"
#include "model/adapters/adapter.h"
#include "model/context.h"

namespace pyflow {
namespace {

using Loaded = std::pair<std::shared_ptr<const Adapter>, float>;

// Within what sums of them keep in range.
int64_t small(const py::dict& d, const char* key, int64_t otherwise, int64_t least) {
  constexpr int64_t kMost = int64_t{1} << 40;
  if (!d.contains(key)) return otherwise;
  const auto found = d[key].cast<int64_t>();
  if (found < least || found > kMost)
    throw ShapeError("adapter: " + std::string(key) + ": expected " + std::to_string(least) +
                     " or more, found " + std::to_string(found));
  return found;
}

LowRankSpec low_rank_spec(const py::dict& d) {
  LowRankSpec spec = {.a = d["a"].cast<std::string>(),
                      .b = d["b"].cast<std::string>(),
                      .rank = small(d, "rank", 1, 1),
                      .scale = d["scale"].cast<double>()};
  if (d.contains("magnitude")) spec.magnitude = d["magnitude"].cast<std::string>();
  const auto is = [&](const char* key) { return d.contains(key) && d[key].cast<bool>(); };
  spec.is_lookup = is("is_lookup");
  spec.by_row = is("by_row");
  spec.by_part = is("by_part");
  spec.turned = is("turned");
  if (d.contains("order")) spec.order = d["order"].cast<Segments>();
  spec.n_parts = small(d, "n_parts", 1, 1);
  spec.part_rows = small(d, "part_rows", 0, 1);
  spec.part = small(d, "part", -1, 0);
  spec.of = small(d, "of", -1, 0);
  spec.first = small(d, "first", 0, 0);
  spec.step = small(d, "step", 1, 1);
  spec.first_input = small(d, "first_input", 0, 0);
  return spec;
}

std::shared_ptr<Adapter> make_adapter(std::shared_ptr<const Stage> stage,
                                      std::shared_ptr<Checkpoint> file, const py::list& given) {
  Adapter::Specs specs;
  for (const py::handle& item : given) {
    const auto [name, spec] = item.cast<std::pair<std::string, py::dict>>();
    specs.emplace_back(name, low_rank_spec(spec));
  }
  TensorSource source = tensor_source(std::move(file));
  py::gil_scoped_release release;
  return std::make_shared<Adapter>(std::move(stage), std::move(source), specs, check_signals);
}

}  // namespace

void register_adapters(py::module_& m) {
  py::class_<Adapter, std::shared_ptr<Adapter>>(m, "Adapter")
      .def(py::init(&make_adapter), py::arg("stage"), py::arg("file"), py::arg("specs"))
      .def_property_readonly("nbytes", &Adapter::nbytes);
  py::class_<AdapterSet, std::shared_ptr<AdapterSet>>(m, "AdapterSet")
      .def(py::init([](const std::vector<std::pair<std::shared_ptr<Adapter>, float>>& given) {
             std::vector<Loaded> adapters(given.begin(), given.end());
             return std::make_shared<AdapterSet>(std::move(adapters));
           }),
           py::arg("adapters"))
      .def_property_readonly("row_floats", &AdapterSet::row_floats);
}

}  // namespace pyflow
