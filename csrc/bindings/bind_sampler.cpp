// The sampler, and what it is told about texts and their tokens.
#include <functional>
#include <map>
#include <optional>

#include "bindings/convert.h"
#include "sample/sampler.h"
#include "sample/stages/bans.h"
#include "sample/stages/dry.h"

namespace pyflow {
namespace {

using Field = std::function<void(SamplerParams&, const py::handle&)>;

template <class T>
Field field(T SamplerParams::*member) {
  return [member](SamplerParams& params, const py::handle& value) {
    params.*member = value.cast<T>();
  };
}

template <class T>
Field shared(std::shared_ptr<const T> SamplerParams::*member) {
  return [member](SamplerParams& params, const py::handle& value) {
    params.*member = value.cast<std::shared_ptr<T>>();
  };
}

const std::map<std::string, Field>& fields() {
  using P = SamplerParams;
  static const std::map<std::string, Field> known = {
      {"temperature", field(&P::temperature)},
      {"dynatemp_range", field(&P::dynatemp_range)},
      {"dynatemp_exponent", field(&P::dynatemp_exponent)},
      {"top_k", field(&P::top_k)},
      {"top_p", field(&P::top_p)},
      {"min_p", field(&P::min_p)},
      {"top_n_sigma", field(&P::top_n_sigma)},
      {"tfs_z", field(&P::tfs_z)},
      {"typical_p", field(&P::typical_p)},
      {"xtc_probability", field(&P::xtc_probability)},
      {"xtc_threshold", field(&P::xtc_threshold)},
      {"repeat_penalty", field(&P::repeat_penalty)},
      {"repeat_last_n", field(&P::repeat_last_n)},
      {"presence_penalty", field(&P::presence_penalty)},
      {"frequency_penalty", field(&P::frequency_penalty)},
      {"dry_multiplier", field(&P::dry_multiplier)},
      {"dry_base", field(&P::dry_base)},
      {"dry_allowed_length", field(&P::dry_allowed_length)},
      {"dry_penalty_last_n", field(&P::dry_penalty_last_n)},
      {"dry_breakers", shared(&P::dry_breakers)},
      {"banned_strings", shared(&P::banned_strings)},
      {"logit_bias", field(&P::logit_bias)},
      {"mirostat", field(&P::mirostat)},
      {"mirostat_tau", field(&P::mirostat_tau)},
      {"mirostat_eta", field(&P::mirostat_eta)},
      {"fsd", field(&P::fsd)},
      {"fsd_alpha", field(&P::fsd_alpha)},
      {"fsd_k", field(&P::fsd_k)},
      {"fsd_n", field(&P::fsd_n)},
      {"fsd_beta", field(&P::fsd_beta)},
      {"fsd_random_n", field(&P::fsd_random_n)},
      {"fsd_random_p", field(&P::fsd_random_p)},
      {"seed", field(&P::seed)},
      {"stream", field(&P::stream)},
      {"n_logprobs", field(&P::n_logprobs)},
  };
  return known;
}

Sampler make_sampler(const py::kwargs& given) {
  SamplerParams params;
  for (const auto& [key, value] : given) {
    const auto name = key.cast<std::string>();
    const auto found = fields().find(name);
    if (found == fields().end()) throw py::type_error("Sampler: unknown parameter " + name);
    try {
      found->second(params, value);
    } catch (const py::cast_error&) {
      throw py::type_error("Sampler: " + name + ": a value of a wrong type");
    }
  }
  return Sampler(std::move(params));
}

Sampled sample(const Sampler& sampler, const FloatArray& logits, int64_t position,
               const IntArray& path, const std::vector<double>& surprises) {
  return sampler.sample(floats(logits), {position, ints(path), {}, surprises});
}

Pairs distribution(const Sampler& sampler, const FloatArray& logits, const IntArray& path,
                   int64_t position) {
  return pairs_of(sampler.distribution(floats(logits), {position, ints(path)}), &Weighted::weight);
}

std::optional<std::vector<std::pair<int32_t, float>>> deciding(const Sampler& sampler,
                                                               const FloatArray& logits,
                                                               std::pair<int64_t, int64_t> part,
                                                               int64_t position,
                                                               const IntArray& path) {
  const auto [first, end] = part;
  if (first < 0 || first % Logits::kBlock || end < first || end > logits.size())
    throw ShapeError("sampler: expected a part that begins at a multiple of " +
                     std::to_string(Logits::kBlock) + ", found " + std::to_string(first) + " to " +
                     std::to_string(end) + " of " + std::to_string(logits.size()));
  std::vector<Candidate> found;
  if (!sampler.deciding(floats(logits), first, end, {position, ints(path)}, found))
    return std::nullopt;
  std::vector<std::pair<int32_t, float>> all;
  for (const Candidate& c : found) all.emplace_back(c.token, c.logit);
  return all;
}

void accept_all(Sampler& sampler, const IntArray& tokens, int64_t n_drawn) {
  const auto all = ints(tokens);
  for (size_t i = 0; i < all.size(); ++i)
    if (static_cast<int64_t>(all.size() - i) > n_drawn)
      sampler.read(all[i]);
    else
      sampler.accept({.token = all[i], .top = {}});
}

void register_texts_of_tokens(py::module_& m) {
  py::class_<Vocabulary, std::shared_ptr<Vocabulary>>(m, "Vocabulary")
      .def(py::init([](const std::vector<py::bytes>& pieces, const std::vector<int32_t>& control) {
             return Vocabulary(std::vector<std::string>(pieces.begin(), pieces.end()), control);
           }),
           py::arg("pieces"), py::arg("control"))
      .def(
          "heads",
          [](const Vocabulary& v, const py::bytes& text) { return v.heads(std::string(text)); },
          py::arg("text"));
  py::class_<DryBreakers, std::shared_ptr<DryBreakers>>(m, "DryBreakers")
      .def(py::init<std::vector<std::vector<int32_t>>>(), py::arg("sequences"));
  py::class_<BannedStrings, std::shared_ptr<BannedStrings>>(m, "BannedStrings")
      .def(py::init(
               [](std::shared_ptr<Vocabulary> vocabulary, const std::vector<py::bytes>& strings) {
                 return BannedStrings(std::move(vocabulary),
                                      std::vector<std::string>(strings.begin(), strings.end()));
               }),
           py::arg("vocabulary"), py::arg("strings"));
}

}  // namespace

void register_sampler(py::module_& m) {
  register_texts_of_tokens(m);
  py::class_<Sampled>(m, "Sampled")
      .def_readonly("token", &Sampled::token)
      .def_readonly("logprob", &Sampled::logprob)
      .def_readonly("surprise", &Sampled::surprise)
      .def_readonly("top", &Sampled::top)
      .def("__repr__",
           [](const Sampled& s) { return "<Sampled token=" + std::to_string(s.token) + ">"; });

  py::class_<Sampler>(m, "Sampler")
      .def(py::init(&make_sampler))
      .def("sample", &sample, py::arg("logits"), py::arg("position"),
           py::arg("path") = IntArray(py::ssize_t{0}), py::kw_only(),
           py::arg("surprises") = std::vector<double>())
      .def("distribution", &distribution, py::arg("logits"),
           py::arg("path") = IntArray(py::ssize_t{0}), py::kw_only(), py::arg("position") = 0)
      .def("deciding", &deciding, py::arg("logits"), py::arg("part"), py::arg("position"),
           py::arg("path") = IntArray(py::ssize_t{0}))
      .def_property(
          "stream", [](const Sampler& s) { return s.params().stream; }, &Sampler::set_stream)
      .def_property("mu", &Sampler::mu, &Sampler::set_mu)
      .def("accept", &Sampler::accept, py::arg("drawn"))
      .def(
          "accept", [](Sampler& s, int32_t token) { s.accept({.token = token, .top = {}}); },
          py::arg("token"))
      .def("accept_all", &accept_all, py::arg("tokens"), py::kw_only(), py::arg("n_drawn") = 0);
}

}  // namespace pyflow
