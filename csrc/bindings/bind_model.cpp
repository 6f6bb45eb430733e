#include "bindings/bind.h"

namespace pyflow {

void register_model(py::module_&) {}

}  // namespace pyflow
