// Policies of verification, with an rng that the test decides; and the noise of draws.
#include <string>
#include <utility>
#include <vector>

#include "bindings/testing.h"
#include "sample/noise.h"
#include "sample/verify.h"

namespace pyflow {
namespace {

// A rng that Python decides.
struct PyRng final : Rng {
  using Rng::Rng;
  bool accept(double numerator, double denominator) override {
    PYBIND11_OVERRIDE_PURE(bool, Rng, accept, numerator, denominator);
  }
  size_t draw(std::span<const double> weights) override {
    const std::vector<double> list(weights.begin(), weights.end());
    PYBIND11_OVERRIDE_PURE(size_t, Rng, draw, list);
  }
};

std::pair<std::vector<int32_t>, int32_t> walk(const std::string& policy,
                                              const std::vector<int32_t>& tokens,
                                              const std::vector<int32_t>& parents,
                                              const std::vector<Pairs>& distributions,
                                              const std::vector<Pairs>& target, Rng& rng) {
  const std::vector<Distribution> wanted = distributions_of(target);
  const DraftTree tree{.tokens = tokens,
                       .parents = parents,
                       .distributions = distributions_of(distributions),
                       .n_verified = static_cast<int64_t>(tokens.size())};
  check_tree(tree);
  check_distributions(tree);
  if (wanted.size() != tree.n_rows()) throw ShapeError("target: expected a distribution per row");
  const Verify verify = policy_named(policy).verify;
  if (verify == nullptr) throw UnsupportedError(policy + ": decides nothing at random");
  Outcome outcome = verify(tree, wanted, rng);
  return {std::move(outcome.nodes), outcome.last};
}

py::array_t<double> gumbel(uint64_t seed, uint32_t stream, int64_t position,
                           const IntArray& tokens) {
  const Noise noise(seed, stream, position);
  py::array_t<double> out(tokens.size());
  for (py::ssize_t i = 0; i < tokens.size(); ++i)
    out.mutable_data()[i] = noise.gumbel(tokens.data()[i]);
  return out;
}

}  // namespace

void register_verify(py::module_& m) {
  py::class_<Rng, PyRng>(m, "Rng")
      .def(py::init<>())
      .def("accept", &Rng::accept)
      .def("draw", [](Rng& c, const std::vector<double>& weights) { return c.draw(weights); });
  m.def(
      "keyed_rng",
      [](uint64_t seed, uint32_t stream, int64_t position) -> std::unique_ptr<Rng> {
        return std::make_unique<KeyedRng>(seed, stream, position);
      },
      py::arg("seed"), py::arg("stream"), py::arg("position"),
      "What policies decide by below the root at a position.");
  m.def("walk", &walk, py::arg("policy"), py::arg("tokens"), py::arg("parents"),
        py::arg("distributions"), py::arg("target"), py::arg("rng"),
        "The accepted nodes, and the token drawn after them; target: a distribution per row.");
  m.def(
      "guess",
      [](const Sampler& sampler, const FloatArray& logits, int64_t position, int n,
         bool distribution) {
        const Guesses g =
            sampler.guess({logits.data(), static_cast<size_t>(logits.size())}, {position}, n,
                          distribution ? Purpose::Draft : Purpose::Sample);
        return std::pair(pairs_of(g.tokens, &Guess::probability),
                         pairs_of(g.distribution, &Weighted::weight));
      },
      py::arg("sampler"), py::arg("logits"), py::arg("position"), py::arg("n"),
      py::arg("distribution"));
  m.def("philox4x32", &philox4x32, py::arg("counter"), py::arg("key"));
  m.def("gumbel", &gumbel, py::arg("seed"), py::arg("stream"), py::arg("position"),
        py::arg("tokens"), "The noise of tokens at a position: float64, one per token.");
}

}  // namespace pyflow
