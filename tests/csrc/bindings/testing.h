// What every file of pyflow_testing includes: a module of its own for tests and benchmarks, with
// types of _core in its arguments. Arrays are used in place and never converted, so that a test can
// poison what lies around them and can point rows into one array.
#pragma once

#include <string_view>

#include "bindings/convert.h"
#include "kernels/table.h"

namespace pyflow {

inline void require(bool condition, const char* what) {
  if (!condition) throw ShapeError(what);
}

// A kernel table by its name: one of dispatch.h, or amx_on_avx512, which has the vectors of amx and
// tiles in software (tiles.cpp). Throws VariableError.
const KernelTable& table_named(std::string_view name);

void register_elementwise(py::module_& m);
void register_attention(py::module_& m);
void register_matmul(py::module_& m);
void register_tiles(py::module_& m);
void register_kv(py::module_& m);
void register_device(py::module_& m);
void register_verify(py::module_& m);
void register_count_pairs(py::module_& m);  // tests/csrc/sample/count_pairs.cpp

}  // namespace pyflow
