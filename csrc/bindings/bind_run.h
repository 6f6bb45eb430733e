// How a context runs on behalf of Python.
#pragma once

#include <functional>
#include <mutex>

#include "bindings/bind.h"
#include "core/errors.h"
#include "model/context.h"

namespace pyflow {

using IntArray = py::array_t<int32_t, py::array::c_style | py::array::forcecast>;
using FloatArray = py::array_t<float, py::array::c_style | py::array::forcecast>;

inline std::span<const int32_t> ints(const IntArray& a) {
  return {a.data(), static_cast<size_t>(a.size())};
}
inline std::span<const float> floats(const FloatArray& a) {
  return {a.data(), static_cast<size_t>(a.size())};
}

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
