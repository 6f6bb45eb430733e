#include "bindings/bind.h"

namespace pyflow {

void register_formats(py::module_&) {}

}  // namespace pyflow
