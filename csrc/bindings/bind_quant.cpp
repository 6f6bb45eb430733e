// Weight formats, and the values of their blocks.
#include <string>
#include <vector>

#include "bindings/convert.h"
#include "encode/encoder.h"
#include "kernels/dispatch.h"
#include "quant/packed_tensor.h"

namespace pyflow {
namespace {

ExactFloats dequantize_array(const std::string& name, const ByteArray& data,
                             const std::vector<py::ssize_t>& shape) {
  const DType dtype = dtype_of(name);
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  check_bytes(data, dtype, rows, shape.empty() ? 1 : shape.back());
  ExactFloats out(shape);
  const uint8_t* src = data.data();
  float* dst = out.mutable_data();
  const int64_t n = out.size();
  py::gil_scoped_release unlocked;
  dequantize(dtype, src, n, dst);
  return out;
}

}  // namespace

void register_quant(py::module_& m) {
  m.def("runnable_isas", [] {
    std::vector<std::string> names;
    for (const KernelTable* t : runnable_tables()) names.emplace_back(t->name);
    return names;
  });
  m.def("weight_formats", [] {
    py::list formats;
    for (const DTypeInfo& d : kDTypes)
      formats.append(py::dict(py::arg("name") = d.name, py::arg("gguf_id") = d.gguf_id,
                              py::arg("block") = d.block, py::arg("block_bytes") = d.block_bytes,
                              py::arg("fine_inputs") = fine_inputs(d.dtype),
                              py::arg("float_inputs") = float_inputs(d.dtype),
                              py::arg("encodes") = can_encode(d.dtype)));
    return formats;
  });
  m.def("dequantize", &dequantize_array, py::arg("dtype"), py::arg("data"), py::arg("shape"));
}

}  // namespace pyflow
