#include "bindings/bind.h"

namespace pyflow {

void register_cpu(py::module_&) {}

}  // namespace pyflow
