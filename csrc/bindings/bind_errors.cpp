#include "bindings/bind.h"
#include "core/errors.h"

namespace pyflow {

// The classes live in pyflow/errors.py; C++ errors are rethrown as their twins.
void register_errors(py::module_&) {
  py::register_exception_translator([](std::exception_ptr p) {
    const auto raise = [](const char* name, const char* what) {
      py::set_error(py::module_::import("pyflow.errors").attr(name), what);
    };
    try {
      if (p) std::rethrow_exception(p);
    } catch (const FormatError& e) {
      raise("FormatError", e.what());
    } catch (const ShapeError& e) {
      raise("ShapeError", e.what());
    } catch (const VariableError& e) {
      raise("VariableError", e.what());
    } catch (const UnsupportedError& e) {
      raise("UnsupportedError", e.what());
    } catch (const ResourceError& e) {
      raise("ResourceError", e.what());
    } catch (const CancelledError& e) {
      raise("CancelledError", e.what());
    } catch (const Error& e) {
      raise("PyflowError", e.what());
    }
  });
}

}  // namespace pyflow
