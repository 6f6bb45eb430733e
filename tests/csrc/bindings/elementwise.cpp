// The kernels on rows of floats, and those that only measure the machine.
#include <string>
#include <utility>

#include "bindings/testing.h"
#include "kernels/dispatch.h"
#include "model/blocks/activation.h"

namespace pyflow {
namespace {

// f(table, x, ...) on x in place.
template <class F, class... Args>
void define(py::module_& m, const char* name, F f, const Args&... args) {
  m.def(name, f, py::arg("isa"), py::arg("x").noconvert(), args...);
}

void register_rows(py::module_& m) {
  for (const auto& [name, norm] : {std::pair("rms_norm", &KernelTable::rms_norm),
                                   std::pair("layer_norm", &KernelTable::layer_norm)})
    define(
        m, name,
        [norm](const std::string& isa, const ExactFloats& x, const ExactFloats& weight, float eps,
               ExactFloats& y) {
          require(x.size() == weight.size() && x.size() == y.size(),
                  "x, weight and y differ in size");
          (kernel_table(isa).*norm)(x.data(), weight.data(), eps, x.size(), y.mutable_data());
        },
        py::arg("weight").noconvert(), py::arg("eps"), py::arg("y").noconvert());
  define(
      m, "add",
      [](const std::string& isa, ExactFloats& x, const ExactFloats& y) {
        require(x.size() == y.size(), "x and y differ in size");
        kernel_table(isa).add(x.mutable_data(), y.data(), x.size());
      },
      py::arg("y").noconvert());
  define(
      m, "add_scaled",
      [](const std::string& isa, ExactFloats& x, const ExactFloats& y, float s) {
        require(x.size() == y.size(), "x and y differ in size");
        kernel_table(isa).add_scaled(x.mutable_data(), y.data(), s, x.size());
      },
      py::arg("y").noconvert(), py::arg("s"));
  define(
      m, "scale",
      [](const std::string& isa, ExactFloats& x, float s) {
        kernel_table(isa).scale(x.mutable_data(), s, x.size());
      },
      py::arg("s"));
  define(
      m, "softcap",
      [](const std::string& isa, ExactFloats& x, float cap) {
        kernel_table(isa).softcap(x.mutable_data(), cap, x.size());
      },
      py::arg("cap"));
  define(m, "log_sum_exp", [](const std::string& isa, const ExactFloats& x) {
    return kernel_table(isa).log_sum_exp(x.data(), x.size());
  });
}

void register_activations(py::module_& m) {
  m.def(
      "activate",
      [](const std::string& isa, const std::string& name, ExactFloats& x) {
        kernel_table(isa).activate(activation_named(name), x.mutable_data(), x.size());
      },
      py::arg("isa"), py::arg("activation"), py::arg("x").noconvert());
  m.def(
      "gate",
      [](const std::string& isa, const std::string& name, ExactFloats& gate,
         const ExactFloats& up) {
        require(gate.size() == up.size(), "gate and up differ in size");
        kernel_table(isa).gate(activation_named(name), gate.mutable_data(), up.data(), gate.size());
      },
      py::arg("isa"), py::arg("activation"), py::arg("gate").noconvert(),
      py::arg("up").noconvert());
  m.def(
      "rope",
      [](const std::string& isa, ExactFloats& head, const ExactFloats& cos_sin, bool interleaved) {
        require(cos_sin.size() % 2 == 0 && cos_sin.size() <= head.size(),
                "more pairs than the head");
        kernel_table(isa).rope(head.mutable_data(), cos_sin.data(), cos_sin.size() / 2,
                               interleaved);
      },
      py::arg("isa"), py::arg("head").noconvert(), py::arg("cos_sin").noconvert(),
      py::arg("interleaved"));
}

void register_probes(py::module_& m) {
  m.def(
      "read_bytes",
      [](const std::string& isa, const ByteArray& p, bool prefetch) {
        require(p.size() % 64 == 0, "a multiple of 64 bytes");
        return kernel_table(isa).read_bytes(p.data(), p.size(), prefetch);
      },
      py::arg("isa"), py::arg("p").noconvert(), py::arg("prefetch"));
  m.def(
      "dot_peak",
      [](const std::string& isa, int64_t n, const ByteArray& weights,
         const py::array_t<int8_t, py::array::c_style>& acts) {
        require(weights.size() == 64 && acts.size() == kPeakActs, "64 weights, 1024 activations");
        ExactInts sums(16);
        const int64_t done =
            kernel_table(isa).dot_peak(n, weights.data(), acts.data(), sums.mutable_data());
        return py::make_tuple(done, sums);
      },
      py::arg("isa"), py::arg("n"), py::arg("weights").noconvert(), py::arg("acts").noconvert());
}

}  // namespace

void register_elementwise(py::module_& m) {
  register_rows(m);
  register_activations(m);
  register_probes(m);
}

}  // namespace pyflow
