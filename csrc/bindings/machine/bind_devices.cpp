// Devices beside the CPU: which there are, whether they are exact, how fast they are.
#include <optional>
#include <string>
#include <vector>

#include "bindings/convert.h"
#include "device/device.h"
#include "device/probe.h"
#include "device/selftest.h"

namespace pyflow {
namespace {

using namespace device;

constexpr int kRepeats = 5;

const char* kind_of(Kind kind) {
  return kind == Kind::Gpu ? "gpu" : kind == Kind::Cpu ? "cpu" : "other";
}

py::dict facts_of(const DeviceInfo& info) {
  py::dict d;
  d["api"] = info.api;
  d["name"] = info.name;
  d["vendor"] = info.vendor;
  d["driver"] = info.driver;
  d["kind"] = kind_of(info.kind);
  d["memory"] = info.memory;
  d["largest_buffer"] = info.largest_buffer;
  d["compute_units"] = info.compute_units;
  d["unified"] = info.unified;
  return d;
}

py::dict devices() {
  Devices devices;
  {
    const py::gil_scoped_release release;
    devices = find_devices();
  }
  py::list found;
  for (const DeviceInfo& info : devices.found) found.append(facts_of(info));
  py::dict d;
  d["found"] = found;
  d["missing"] = devices.missing;
  return d;
}

py::dict probe_device(size_t number, const std::string& folder,
                      const std::optional<std::vector<std::string>>& names, bool measures) {
  std::string fault, units_fault, refusal;
  std::vector<DType> formats(std::begin(kProbedFormats), std::end(kProbedFormats));
  if (names) {
    formats.clear();
    for (const std::string& name : *names) formats.push_back(dtype_of(name));
  }
  Speed speed = {};
  std::optional<uint64_t> free;
  {
    const py::gil_scoped_release release;
    const auto device = open_device(number);
    free = device->free_memory();
    Compiled compiled = compile(device, formats, folder, check_signals);
    check_signals();
    refusal = compiled.refusal;
    fault = find_fault(compiled, formats, check_signals);
    units_fault = compiled.units_fault;
    check_signals();
    Ops ops(compiled);
    if (measures) speed = measure(ops, kRepeats, check_signals);
  }
  py::dict d;
  d["fault"] = fault;
  d["units_fault"] = units_fault;
  d["read_bandwidth"] = speed.read_bandwidth;
  d["launch_seconds"] = speed.launch_seconds;
  d["free_memory"] = free;
  d["refusal"] = refusal;
  return d;
}

}  // namespace

void register_devices(py::module_& m) {
  m.def("devices", &devices);
  m.def("drivers_at_work", &n_apart);
  m.def("probe_device", &probe_device, py::arg("number"), py::arg("folder"),
        py::arg("formats") = py::none(), py::arg("measures") = true);
}

}  // namespace pyflow
