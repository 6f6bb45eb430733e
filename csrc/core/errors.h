// The errors that may reach a user. Python has a twin of each in pyflow/errors.py.
#pragma once

#include <stdexcept>
#include <string>

namespace pyflow {

struct Error : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// A file breaks its format: names file, field, offset, expected and found.
struct FormatError : Error {
  using Error::Error;
};

// Two things that must agree in shape do not.
struct ShapeError : Error {
  using Error::Error;
};

// Well formed, but this build cannot do it.
struct UnsupportedError : Error {
  using Error::Error;
};

// An environment variable has a value that does not exist or that this CPU cannot run.
struct VariableError : UnsupportedError {
  using UnsupportedError::UnsupportedError;
};

// Memory, cells or threads have run out; nothing has been changed.
struct ResourceError : Error {
  using Error::Error;
};

// A device, or its driver, has failed or cannot be used: names the device, the call and the answer.
struct DeviceError : Error {
  using Error::Error;
};

// A run was asked to stop before it was done.
struct CancelledError : Error {
  using Error::Error;
};

}  // namespace pyflow
