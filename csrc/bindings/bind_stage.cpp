// Stages: a range of layers, from the dicts that ModelSpec.stage makes.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/probe.h"
#include "bindings/convert.h"
#include "device/device.h"
#include "files/checkpoint.h"
#include "kernels/dispatch.h"
#include "model/stage.h"

namespace pyflow {
namespace {

TensorRef tensor_ref(const py::handle& given) {
  if (!py::isinstance<py::dict>(given)) return {.name = given.cast<std::string>()};
  const auto d = given.cast<py::dict>();
  TensorRef ref{.name = d["name"].cast<std::string>()};
  if (d.contains("rows")) ref.rows = d["rows"].cast<decltype(ref.rows)>();
  if (d.contains("transposed")) ref.transposed = d["transposed"].cast<bool>();
  if (d.contains("add")) ref.add = d["add"].cast<double>();
  constexpr int64_t kMost = int64_t{1} << 48;  // so that sums of them stay in range
  for (const auto& [start, count] : ref.rows)
    if (start < 0 || start > kMost || count < 1 || count > kMost)
      throw ShapeError("tensor " + ref.name + ": rows: expected segments (start, count), found (" +
                       std::to_string(start) + ", " + std::to_string(count) + ")");
  return ref;
}

BlockSpec::Value list_value(const py::list& list) {
  if (list.empty() || py::isinstance<py::float_>(list[0]) || py::isinstance<py::int_>(list[0]))
    return list.cast<std::vector<double>>();
  std::vector<TensorRef> refs;
  for (const auto& item : list) refs.push_back(tensor_ref(item));
  return refs;
}

BlockSpec block_spec(const py::dict& d) {
  BlockSpec spec;
  for (const auto& [key, value] : d) {
    const auto name = key.cast<std::string>();
    if (name == "kind")
      spec.kind = value.cast<std::string>();
    else if (py::isinstance<py::bool_>(value))
      spec.params[name] = value.cast<bool>();
    else if (py::isinstance<py::int_>(value))
      spec.params[name] = value.cast<int64_t>();
    else if (py::isinstance<py::float_>(value))
      spec.params[name] = value.cast<double>();
    else if (py::isinstance<py::dict>(value))
      spec.params[name] = tensor_ref(value);
    else if (py::isinstance<py::list>(value))
      spec.params[name] = list_value(value.cast<py::list>());
    else if (!value.is_none())
      spec.params[name] = value.cast<std::string>();
  }
  return spec;
}

StageSpec stage_spec(const py::dict& d) {
  StageSpec spec;
  spec.n_embd = d["n_embd"].cast<int64_t>();
  spec.n_vocab = d["n_vocab"].cast<int64_t>();
  for (const auto& item : d["ropes"].cast<py::list>()) {
    const auto r = item.cast<py::dict>();
    RopeSpec& rope = spec.ropes.emplace_back();
    rope.inv_freq = r["inv_freq"].cast<std::vector<double>>();
    rope.magnitude = r["magnitude"].cast<double>();
    rope.interleaved = r["interleaved"].cast<bool>();
    if (!r.contains("long_inv_freq")) continue;
    rope.long_inv_freq = r["long_inv_freq"].cast<std::vector<double>>();
    rope.long_magnitude = r["long_magnitude"].cast<double>();
    rope.n_ctx_original = r["n_ctx_original"].cast<int64_t>();
  }
  const auto optional = [&](const char* key) -> std::optional<BlockSpec> {
    if (d[key].is_none()) return std::nullopt;
    return block_spec(d[key].cast<py::dict>());
  };
  spec.embedding = optional("embedding");
  spec.head = optional("head");
  for (const auto& layer : d["layers"].cast<py::list>()) {
    spec.layers.emplace_back();
    for (const auto& block : layer.cast<py::list>())
      spec.layers.back().push_back(block_spec(block.cast<py::dict>()));
  }
  return spec;
}

// A dict of device (a number of find_devices), layers, head, allow_inexact and programs.
Offload offload_from(const py::dict& d, const StageSpec& stage) {
  Offload offload;
  offload.layers.resize(stage.layers.size());
  for (const auto& item : d["layers"].cast<py::list>()) {
    const auto layer = item.cast<int64_t>();
    if (layer < 0 || layer >= std::ssize(stage.layers))
      throw ShapeError("device layer " + std::to_string(layer) + ": expected 0 to " +
                       std::to_string(std::ssize(stage.layers) - 1));
    offload.layers[static_cast<size_t>(layer)] = 1;
  }
  offload.head = d["head"].cast<bool>() && stage.head;
  offload.allow_inexact = d["allow_inexact"].cast<bool>();
  offload.programs = d["programs"].cast<std::string>();
  offload.device = device::open_device(d["device"].cast<size_t>());
  return offload;
}

std::shared_ptr<Stage> make_stage(std::shared_ptr<Checkpoint> file, const py::dict& spec,
                                  std::shared_ptr<ThreadPool> pool, bool load,
                                  const std::optional<std::string>& pack_as,
                                  const py::object& offload_spec) {
  StageSpec parsed = stage_spec(spec);
  Offload offload;
  if (!offload_spec.is_none()) offload = offload_from(offload_spec.cast<py::dict>(), parsed);
  std::optional<DType> dtype;
  if (pack_as) dtype = dtype_of(*pack_as);
  const KernelTable& kernels = kernel_table();
  TensorSource source{file->label(), [file](const std::string& name) { return file->find(name); },
                      [file](const TensorRecord& r) { file->release(r); },
                      [file] { file->release_all(); }};
  py::gil_scoped_release release;
  return std::make_shared<Stage>(std::move(parsed), std::move(source), std::move(pool), kernels,
                                 dtype, load, check_signals, std::move(offload));
}

}  // namespace

void register_stage(py::module_& m) {
  py::class_<Stage, std::shared_ptr<Stage>>(m, "Stage")
      .def(py::init(&make_stage), py::arg("file"), py::arg("spec"), py::arg("pool"),
           py::arg("load") = true, py::arg("pack_as") = py::none(), py::arg("offload") = py::none())
      .def_property_readonly("weight_bytes", &Stage::weight_bytes)
      .def_property_readonly("device_weight_bytes", &Stage::device_weight_bytes)
      .def_property_readonly("device_fault",
                             [](const Stage& s) { return s.device() ? s.device()->fault() : ""; })
      .def_property_readonly(
          "device_refusal",
          [](const Stage& s) { return s.device() ? s.device()->compiled().refusal : ""; })
      .def_property_readonly("token_bytes",
                             [](const Stage& s) {
                               size_t n = 0;
                               for (const Bytes part : s.token_weights()) n += part.size();
                               return n;
                             })
      .def(
          "read_rate",
          [](const Stage& s, int repeats) {
            std::vector<std::vector<Bytes>> copies;
            for (size_t i = 0; i < s.pool().placement().n_copies(); ++i)
              copies.push_back(s.token_weights(i));
            return read_rate(s.pool(), s.kernels(), copies, repeats, check_signals);
          },
          py::arg("repeats"), py::call_guard<py::gil_scoped_release>())
      .def(
          "dot_rate",
          [](const Stage& s, int repeats) {
            return dot_rate(s.pool(), s.kernels(), repeats, check_signals);
          },
          py::arg("repeats"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("isa", [](const Stage& s) { return s.kernels().name; })
      .def_property_readonly("prefill", [](const Stage& s) { return prefill_of(s.has_prefill()); })
      .def_property_readonly("shifts", &Stage::shifts)
      .def_property_readonly("used_tensors", &Stage::used_tensors);
}

}  // namespace pyflow
