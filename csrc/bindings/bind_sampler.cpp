#include "bindings/bind.h"

namespace pyflow {

void register_sampler(py::module_&) {}

}  // namespace pyflow
