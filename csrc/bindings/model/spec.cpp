#include "bindings/model/spec.h"

#include <utility>
#include <vector>

namespace pyflow {

TensorRef tensor_ref(const py::handle& given) {
  if (!py::isinstance<py::dict>(given)) return {.name = given.cast<std::string>()};
  const auto d = given.cast<py::dict>();
  TensorRef ref{.name = d["name"].cast<std::string>()};
  if (d.contains("rows")) ref.rows = d["rows"].cast<decltype(ref.rows)>();
  if (d.contains("step")) ref.step = d["step"].cast<int64_t>();
  if (d.contains("inputs")) ref.inputs = d["inputs"].cast<decltype(ref.inputs)>();
  if (d.contains("transposed")) ref.transposed = d["transposed"].cast<bool>();
  if (d.contains("add")) ref.add = d["add"].cast<double>();
  constexpr int64_t kMost = int64_t{1} << 48;  // so that sums of them stay in range
  for (const auto& [start, count] : ref.rows)
    if (start < -1 || start > kMost || count < 1 || count > kMost)
      throw ShapeError("tensor " + ref.name + ": rows: expected segments (start, count), found (" +
                       std::to_string(start) + ", " + std::to_string(count) + ")");
  constexpr int64_t kMostStep = int64_t{1} << 14;
  if (ref.step < 1 || ref.step > kMostStep || ref.inputs.first < 0 || ref.inputs.first > kMost ||
      ref.inputs.second < 0 || ref.inputs.second > kMost)
    throw ShapeError("tensor " + ref.name + ": expected a step of 1 to 16,384 and inputs (start, " +
                     "count), found " + std::to_string(ref.step) + " and (" +
                     std::to_string(ref.inputs.first) + ", " + std::to_string(ref.inputs.second) +
                     ")");
  return ref;
}

static BlockSpec::Value list_value(const py::list& list) {
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

TensorSource tensor_source(std::shared_ptr<Checkpoint> file) {
  return {file->label(), [file](const std::string& name) { return file->find(name); },
          [file](const TensorRecord& r) { file->release(r); }, [file] { file->release_all(); }};
}

}  // namespace pyflow
