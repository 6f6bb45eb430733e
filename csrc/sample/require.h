// Checks of what a caller gives.
#pragma once

#include <sstream>

#include "core/errors.h"

namespace pyflow {

// Throws Error "name: expected ..., found ..." unless ok.
template <class T>
void require(bool ok, const char* name, const char* expected, T found) {
  if (ok) return;
  std::ostringstream message;
  message << name << ": expected " << expected << ", found " << found;
  throw Error(message.str());
}

}  // namespace pyflow
