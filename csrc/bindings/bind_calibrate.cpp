// What matrices are multiplied by, summed up for quantization.
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>

#include "bindings/bind.h"
#include "calibrate/input_moments.h"
#include "core/errors.h"
#include "model/stage.h"

namespace pyflow {
namespace {

// For each input the tensors multiplied by it, their first rows, its columns, and the sums, which
// are those of `self`.
py::list moments(const py::object& self) {
  auto& observer = self.cast<InputMoments&>();
  std::unordered_map<const PackedTensor*, py::tuple> names;
  observer.stage().for_matrices([&](const TensorRef& ref, const PackedTensor& w) {
    names[&w] = py::make_tuple(ref.name, ref.first());
  });
  py::list out;
  for (const InputMoments::Moments& m : observer.moments()) {
    if (!m.sums.data())
      throw ResourceError("second moments of inputs: expected " +
                          std::to_string(m.shape.size() * int64_t{sizeof(float)}) +
                          " bytes of memory for the next matrix, found less; measure without them");
    py::list matrices;
    for (const PackedTensor* w : m.matrices) matrices.append(names.at(w));
    out.append(py::make_tuple(std::move(matrices), m.shape.n_cols(),
                              py::array_t<float>(m.shape.size(), m.sums.as<float>(), self)));
  }
  return out;
}

// Name of the tensor, its first row that the matrix has, rows added, and the sums.
py::list sums(const InputMoments& observer) {
  py::list out;
  observer.stage().for_matrices([&](const TensorRef& ref, const PackedTensor& w) {
    const InputMoments::Sums& s = observer.of(w);
    py::array_t<double> columns(static_cast<py::ssize_t>(s.columns.size()), s.columns.data());
    out.append(py::make_tuple(ref.name, ref.first(), s.n_rows, std::move(columns)));
  });
  return out;
}

}  // namespace

void register_calibrate(py::module_& m) {
  py::class_<InputMoments, std::shared_ptr<InputMoments>>(m, "InputMoments")
      .def(py::init([](std::shared_ptr<Stage> stage, bool moments) {
             return std::make_shared<InputMoments>(std::move(stage), moments);
           }),
           py::arg("stage"), py::arg("moments") = false)
      .def("sums", &sums)
      .def("moments", &moments);
}

}  // namespace pyflow
