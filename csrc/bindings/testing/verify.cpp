// Policies of verification, with a chance that the test decides.
#include <string>
#include <utility>
#include <vector>

#include "bindings/testing/testing.h"
#include "sample/verify.h"

namespace pyflow {
namespace {

// A chance that Python decides.
struct PyChance final : Chance {
  using Chance::Chance;
  bool accept(double numerator, double denominator) override {
    PYBIND11_OVERRIDE_PURE(bool, Chance, accept, numerator, denominator);
  }
  size_t draw(std::span<const double> weights) override {
    const std::vector<double> list(weights.begin(), weights.end());
    PYBIND11_OVERRIDE_PURE(size_t, Chance, draw, list);
  }
};

std::pair<std::vector<int32_t>, int32_t> walk(const std::string& policy,
                                              const std::vector<int32_t>& tokens,
                                              const std::vector<int32_t>& parents,
                                              const std::vector<Pairs>& laws,
                                              const std::vector<Pairs>& target, Chance& chance) {
  const std::vector<Law> drafted = laws_of(laws), wanted = laws_of(target);
  const TreeView tree{.tokens = tokens, .parents = parents, .laws = drafted};
  check_tree(tree);
  check_laws(tree);
  if (wanted.size() != tree.n_rows()) throw ShapeError("target: expected a law per row");
  const Walk walk = policy_named(policy).walk;
  if (walk == nullptr) throw UnsupportedError(policy + ": decides nothing at random");
  Walked walked = walk(tree, wanted, chance);
  return {std::move(walked.nodes), walked.last};
}

}  // namespace

void register_verify(py::module_& m) {
  py::class_<Chance, PyChance>(m, "Chance")
      .def(py::init<>())
      .def("accept", &Chance::accept)
      .def("draw", [](Chance& c, const std::vector<double>& weights) { return c.draw(weights); });
  m.def(
      "keyed_chance",
      [](uint64_t seed, uint32_t stream, int64_t position) -> std::unique_ptr<Chance> {
        return std::make_unique<KeyedChance>(seed, stream, position);
      },
      py::arg("seed"), py::arg("stream"), py::arg("position"),
      "What policies decide by below the root at a position.");
  m.def("walk", &walk, py::arg("policy"), py::arg("tokens"), py::arg("parents"), py::arg("laws"),
        py::arg("target"), py::arg("chance"),
        "The accepted nodes, and the token drawn after them; target: a law per row.");
  m.def(
      "guess",
      [](const Sampler& sampler, const FloatArray& logits, int64_t position, int n, bool law) {
        const Guesses g = sampler.guess({logits.data(), static_cast<size_t>(logits.size())},
                                        position, {}, n, law ? Purpose::Draft : Purpose::Sample);
        return std::pair(pairs_of(g.tokens, &Guess::probability),
                         pairs_of(g.law, &Weighted::weight));
      },
      py::arg("sampler"), py::arg("logits"), py::arg("position"), py::arg("n"), py::arg("law"));
}

}  // namespace pyflow
