#include "bindings/bind.h"

PYBIND11_MODULE(_core, m) {
  m.doc() = "The arithmetic of pyflow. Use it through the pyflow package.";
  pyflow::register_errors(m);
  pyflow::register_cpu(m);
  pyflow::register_formats(m);
  pyflow::register_quant(m);
  pyflow::register_sampler(m);
  pyflow::register_model(m);
  pyflow::register_speculate(m);
}
