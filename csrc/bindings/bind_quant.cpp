#include "bindings/bind.h"

namespace pyflow {

void register_quant(py::module_&) {}

}  // namespace pyflow
