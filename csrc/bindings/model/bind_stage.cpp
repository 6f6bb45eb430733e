// Stages: a range of layers, from the dicts that ModelSpec.stage makes.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bench/probe.h"
#include "bindings/convert.h"
#include "bindings/model/spec.h"
#include "device/device.h"
#include "files/checkpoint.h"
#include "kernels/dispatch.h"
#include "model/stage.h"

namespace pyflow {
namespace {

StageSpec stage_spec(const py::dict& d) {
  StageSpec spec;
  spec.n_embd = d["n_embd"].cast<int64_t>();
  spec.n_vocab = d["n_vocab"].cast<int64_t>();
  if (d.contains("n_carried")) spec.n_carried = d["n_carried"].cast<int64_t>();
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
  if (d.contains("embedded")) spec.embedded = d["embedded"].cast<bool>();
  if (d.contains("chains"))
    for (const auto& [name, layers] : d["chains"].cast<py::dict>())
      for (const auto& layer : layers.cast<py::list>())
        spec.chains[name.cast<std::string>()].push_back(block_spec(layer.cast<py::dict>()));
  for (const auto& layer : d["layers"].cast<py::list>()) {
    spec.layers.emplace_back();
    for (const auto& block : layer.cast<py::list>())
      spec.layers.back().push_back(block_spec(block.cast<py::dict>()));
  }
  return spec;
}

// A dict of groups, each with devices (numbers of find_devices), layers and head; experts: layers
// whose experts go with them; allow_inexact, and programs.
Offload offload_from(const py::dict& d, const StageSpec& stage) {
  Offload offload;
  offload.layers.resize(stage.layers.size(), kHost);
  offload.experts.resize(stage.layers.size());
  const auto index = [&](int64_t layer) {
    if (layer < 0 || layer >= std::ssize(stage.layers))
      throw ShapeError("device layer " + std::to_string(layer) + ": expected 0 to " +
                       std::to_string(std::ssize(stage.layers) - 1));
    return static_cast<size_t>(layer);
  };
  for (const auto layer : d["experts"].cast<std::vector<int64_t>>())
    offload.experts[index(layer)] = 1;
  for (const auto& item : d["groups"].cast<py::list>()) {
    const auto group = item.cast<py::dict>();
    const auto number = static_cast<Home>(offload.groups.size());
    for (const auto layer : group["layers"].cast<std::vector<int64_t>>())
      offload.layers[index(layer)] = number;
    if (group["head"].cast<bool>() && stage.head) offload.head = number;
    offload.groups.emplace_back();
    for (const auto device : group["devices"].cast<std::vector<size_t>>())
      offload.groups.back().push_back(device::open_device(device));
    if (offload.groups.back().empty()) throw ShapeError("gpu: expected devices in each group");
  }
  offload.allow_inexact = d["allow_inexact"].cast<bool>();
  offload.programs = d["programs"].cast<std::string>();
  return offload;
}

// of(device) of each device, group after group; none if the stage is only planned.
template <class Of>
std::vector<std::string> by_device(const Stage& stage, Of&& of) {
  std::vector<std::string> all;
  for (Home group = 0; stage.is_loaded() && group < stage.n_groups(); ++group)
    for (const auto& device : stage.devices(group)) all.push_back(of(*device));
  return all;
}

std::shared_ptr<Stage> make_stage(std::shared_ptr<Checkpoint> file, const py::dict& spec,
                                  std::shared_ptr<ThreadPool> pool, bool load,
                                  const std::optional<std::string>& pack_as,
                                  const py::object& offload_spec,
                                  const std::pair<int64_t, int64_t>& member,
                                  std::vector<int64_t> speeds) {
  StageSpec parsed = stage_spec(spec);
  parsed.member = {member.first, member.second, std::move(speeds)};
  Offload offload;
  if (!offload_spec.is_none()) {
    offload = offload_from(offload_spec.cast<py::dict>(), parsed);
    if (!parsed.member.speeds.empty())
      throw UnsupportedError("gpu: ranks that share layers on devices have equal shares");
    // Devices have some rows each; what the CPU computes is whole on all ranks.
    offload.ranks = std::exchange(parsed.member, {});
  }
  std::optional<DType> dtype;
  if (pack_as) dtype = dtype_of(*pack_as);
  const KernelTable& kernels = kernel_table();
  TensorSource source = tensor_source(std::move(file));
  py::gil_scoped_release release;
  return std::make_shared<Stage>(std::move(parsed), std::move(source), std::move(pool), kernels,
                                 dtype, load, check_signals, std::move(offload));
}

}  // namespace

void register_stage(py::module_& m) {
  py::class_<Stage, std::shared_ptr<Stage>>(m, "Stage")
      .def(py::init(&make_stage), py::arg("file"), py::arg("spec"), py::arg("pool"),
           py::arg("load") = true, py::arg("pack_as") = py::none(), py::arg("offload") = py::none(),
           py::arg("member") = std::pair<int64_t, int64_t>(0, 1),
           py::arg("speeds") = std::vector<int64_t>{})
      .def_property_readonly("host_tables",
                             [](const Stage& s) {
                               const bool whole = s.spec().member.alone(),
                                          head = s.last() && s.head_home() == kHost;
                               return std::pair(whole && s.first(), whole && head);
                             })
      .def_property_readonly("weight_bytes", &Stage::weight_bytes)
      .def_property_readonly("device_weight_bytes", &Stage::device_weight_bytes)
      .def_property_readonly("device_faults",
                             [](const Stage& s) {
                               return by_device(s, [](const DeviceStage& d) { return d.fault(); });
                             })
      .def_property_readonly("device_refusals",
                             [](const Stage& s) {
                               return by_device(
                                   s, [](const DeviceStage& d) { return d.compiled().refusal; });
                             })
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
      .def_property_readonly("key_widths",
                             [](const Stage& s) {
                               std::vector<int64_t> all;
                               for (const LayerKv& kv : s.kv_layers())
                                 all.push_back(kv.n_kv_heads * kv.key_dim);
                               return all;
                             })
      .def_property_readonly("isa", [](const Stage& s) { return s.kernels().name; })
      .def_property_readonly("prefill", [](const Stage& s) { return prefill_of(s.has_prefill()); })
      .def(
          "rounds",
          [](const Stage& s, const std::string& regime) { return s.rounds(regime_of(regime)); },
          py::arg("regime") = "decode")
      .def_property_readonly("shifts", &Stage::shifts)
      .def_property_readonly("used_tensors", &Stage::used_tensors);
}

}  // namespace pyflow
