// What every file of pyflow_testing includes: a module of its own for tests and benchmarks, with
// types of _core in its arguments. Arrays are used in place and never converted, so that a test can
// poison what lies around them and can point rows into one array.
#pragma once

#include "bindings/convert.h"

namespace pyflow {

inline void require(bool condition, const char* what) {
  if (!condition) throw ShapeError(what);
}

void register_elementwise(py::module_& m);
void register_attention(py::module_& m);
void register_matmul(py::module_& m);
void register_tiles(py::module_& m);
void register_kv(py::module_& m);
void register_verify(py::module_& m);
void register_count_pairs(py::module_& m);  // tests/csrc/sample/count_pairs.cpp

}  // namespace pyflow
