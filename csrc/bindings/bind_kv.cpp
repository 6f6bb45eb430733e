#include "bindings/bind.h"

namespace pyflow {

void register_kv(py::module_&) {}

}  // namespace pyflow
