// Adapters beside the matrices of a stage, and sets of them for a sequence.
#include <map>
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

std::shared_ptr<Adapter> make_adapter(std::shared_ptr<const Stage> stage,
                                      std::shared_ptr<Checkpoint> file, const py::dict& given) {
  std::map<std::string, LowRankSpec> specs;
  for (const auto& [name, item] : given) {
    const auto d = item.cast<py::dict>();
    specs[name.cast<std::string>()] = {tensor_ref(d["a"]), tensor_ref(d["b"]),
                                       d["rank"].cast<int64_t>(), d["scale"].cast<double>()};
  }
  TensorSource source = tensor_source(std::move(file));
  py::gil_scoped_release release;
  return std::make_shared<Adapter>(std::move(stage), std::move(source), specs, check_signals);
}

}  // namespace

void register_adapters(py::module_& m) {
  py::class_<Adapter, std::shared_ptr<Adapter>>(m, "Adapter")
      .def(py::init(&make_adapter), py::arg("stage"), py::arg("file"), py::arg("specs"));
  py::class_<AdapterSet, std::shared_ptr<AdapterSet>>(m, "AdapterSet")
      .def(py::init([](const std::vector<std::pair<std::shared_ptr<Adapter>, float>>& given) {
             std::vector<Loaded> adapters(given.begin(), given.end());
             return std::make_shared<AdapterSet>(std::move(adapters));
           }),
           py::arg("adapters"));
}

}  // namespace pyflow
