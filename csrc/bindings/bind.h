// What every bind_<noun>.cpp includes.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace pyflow {
namespace py = pybind11;

// Long work calls this now and then, with or without the GIL: Python looks at signals only when
// asked to. Throws what their handlers raise, KeyboardInterrupt for Ctrl-C.
inline void check_signals() {
  const py::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

void register_errors(py::module_& m);
void register_cpu(py::module_& m);
void register_formats(py::module_& m);
void register_quant(py::module_& m);
void register_sampler(py::module_& m);
void register_model(py::module_& m);
void register_speculate(py::module_& m);

}  // namespace pyflow
