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

void register_cpu(py::module_& m);
void register_threads(py::module_& m);
void register_devices(py::module_& m);
void register_files(py::module_& m);
void register_joined(py::module_& m);
void register_quant(py::module_& m);
void register_encode(py::module_& m);
void register_sampler(py::module_& m);
void register_link(py::module_& m);
void register_stage(py::module_& m);
void register_heads(py::module_& m);
void register_adapters(py::module_& m);
void register_texts(py::module_& m);
void register_calibrate(py::module_& m);
void register_context(py::module_& m);
void register_step(py::module_& m);

}  // namespace pyflow
