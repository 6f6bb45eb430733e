// The sampler.
#include "bindings/convert.h"
#include "sample/sampler.h"

namespace pyflow {
namespace {

Sampled sample(const Sampler& sampler, const FloatArray& logits, int64_t position,
               const IntArray& path) {
  return sampler.sample(floats(logits), position, ints(path));
}

Pairs distribution(const Sampler& sampler, const FloatArray& logits, const IntArray& path) {
  return pairs_of(sampler.distribution(floats(logits), ints(path)), &Weighted::weight);
}

}  // namespace

void register_sampler(py::module_& m) {
  py::class_<Sampled>(m, "Sampled")
      .def_readonly("token", &Sampled::token)
      .def_readonly("logprob", &Sampled::logprob)
      .def_readonly("top", &Sampled::top)
      .def("__repr__",
           [](const Sampled& s) { return "<Sampled token=" + std::to_string(s.token) + ">"; });

  const SamplerParams d;
  py::class_<Sampler>(m, "Sampler")
      .def(py::init([](float temperature, int top_k, float top_p, float min_p, float repeat_penalty,
                       int repeat_last_n, float presence_penalty, float frequency_penalty,
                       std::vector<std::pair<int32_t, float>> logit_bias, uint64_t seed,
                       uint32_t stream, int n_logprobs) {
             return Sampler({temperature, top_k, top_p, min_p, repeat_penalty, repeat_last_n,
                             presence_penalty, frequency_penalty, std::move(logit_bias), seed,
                             stream, n_logprobs});
           }),
           py::kw_only(), py::arg("temperature") = d.temperature, py::arg("top_k") = d.top_k,
           py::arg("top_p") = d.top_p, py::arg("min_p") = d.min_p,
           py::arg("repeat_penalty") = d.repeat_penalty, py::arg("repeat_last_n") = d.repeat_last_n,
           py::arg("presence_penalty") = d.presence_penalty,
           py::arg("frequency_penalty") = d.frequency_penalty, py::arg("logit_bias") = d.logit_bias,
           py::arg("seed") = d.seed, py::arg("stream") = d.stream,
           py::arg("n_logprobs") = d.n_logprobs)
      .def("sample", &sample, py::arg("logits"), py::arg("position"),
           py::arg("path") = IntArray(py::ssize_t{0}))
      .def("distribution", &distribution, py::arg("logits"),
           py::arg("path") = IntArray(py::ssize_t{0}))
      .def_property(
          "stream", [](const Sampler& s) { return s.params().stream; }, &Sampler::set_stream)
      .def("accept", &Sampler::accept, py::arg("token"))
      .def(
          "accept_all",
          [](Sampler& s, const IntArray& tokens) {
            for (py::ssize_t i = 0; i < tokens.size(); ++i) s.accept(tokens.data()[i]);
          },
          py::arg("tokens"));
}

}  // namespace pyflow
