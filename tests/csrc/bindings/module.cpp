#include "bindings/testing.h"

PYBIND11_MODULE(pyflow_testing, m) {
  m.doc() = "Parts of pyflow's arithmetic one by one, for tests and benchmarks.";
  pyflow::py::module_::import("pyflow._core");  // the types that both modules share
  pyflow::register_elementwise(m);
  pyflow::register_attention(m);
  pyflow::register_matmul(m);
  pyflow::register_tiles(m);
  pyflow::register_kv(m);
  pyflow::register_device(m);
  pyflow::register_verify(m);
  pyflow::register_count_pairs(m);
}
