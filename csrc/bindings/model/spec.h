// Specs of models as Python's dicts, into the core's types.
#pragma once

#include <memory>
#include <string>

#include "bindings/bind.h"
#include "files/checkpoint.h"
#include "model/spec.h"
#include "model/weights.h"

namespace pyflow {

TensorRef tensor_ref(const py::handle& given);
// A dict of `kind` and parameters.
BlockSpec block_spec(const py::dict& d);
// The tensors of a file, which it keeps open.
TensorSource tensor_source(std::shared_ptr<Checkpoint> file);

}  // namespace pyflow
