#include "bindings/bind.h"
#include "core/errors.h"
#include "link/link.h"

namespace pyflow {

// The classes live in pyflow/errors.py; C++ errors are rethrown as their twins.
static void register_errors() {
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
    } catch (const DeviceError& e) {
      raise("DeviceError", e.what());
    } catch (const LinkError& e) {
      raise("LinkError", e.what());
    } catch (const CancelledError& e) {
      raise("CancelledError", e.what());
    } catch (const Error& e) {
      raise("PyflowError", e.what());
    }
  });
}

}  // namespace pyflow

PYBIND11_MODULE(_core, m) {
  m.doc() = "The arithmetic of pyflow. Use it through the pyflow package.";
  pyflow::register_errors();
  pyflow::register_cpu(m);
  pyflow::register_threads(m);
  pyflow::register_devices(m);
  pyflow::register_files(m);
  pyflow::register_joined(m);
  pyflow::register_quant(m);
  pyflow::register_encode(m);
  pyflow::register_sampler(m);
  pyflow::register_link(m);
  pyflow::register_stage(m);
  pyflow::register_heads(m);
  pyflow::register_adapters(m);
  pyflow::register_texts(m);
  pyflow::register_calibrate(m);
  pyflow::register_context(m);
  pyflow::register_step(m);
}
