// What every bind_<noun>.cpp includes.
#pragma once

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

namespace pyflow {
namespace py = pybind11;

void register_errors(py::module_& m);
void register_cpu(py::module_& m);
void register_formats(py::module_& m);
void register_quant(py::module_& m);
void register_kernels(py::module_& m);
void register_kv(py::module_& m);
void register_sampler(py::module_& m);
void register_model(py::module_& m);

}  // namespace pyflow
