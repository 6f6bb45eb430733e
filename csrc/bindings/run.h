// How a context runs on behalf of Python.
#pragma once

#include <functional>
#include <mutex>

#include "bindings/bind.h"
#include "core/errors.h"
#include "model/context.h"

namespace pyflow {

// Calls body(poll) with the GIL released, and stops it at Ctrl-C. ResourceError while the context
// runs for another thread.
template <class Body>
void run_released(Context& c, Body&& body) {
  // Ctrl-C during a long prefill: Python only looks at signals when asked to.
  bool signalled = false;
  const std::function<bool()> poll = [&] {
    py::gil_scoped_acquire acquire;
    signalled = PyErr_CheckSignals() != 0;
    return signalled;
  };
  const std::unique_lock busy(c.busy(), std::try_to_lock);
  if (!busy)
    throw ResourceError("context: already running in another thread; use one context per thread");
  try {
    py::gil_scoped_release release;
    body(poll);
  } catch (const CancelledError&) {
    if (signalled) throw py::error_already_set();
    throw;
  }
}

}  // namespace pyflow
