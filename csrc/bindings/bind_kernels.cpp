#include "bindings/bind.h"

namespace pyflow {

void register_kernels(py::module_&) {}

}  // namespace pyflow
