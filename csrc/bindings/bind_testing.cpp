// What tests need of the core and nobody else does: _core.testing.
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind_law.h"
#include "core/errors.h"
#include "sample/verify.h"

namespace pyflow {
namespace {

using FloatArray = py::array_t<float, py::array::c_style | py::array::forcecast>;

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

// n pairs of tokens as a model would emit them that looks back on one token only: row 0 of `target`
// are its logits at first, row 1 + t those after token t, and likewise row by row for the draft
// model. Each step drafts a tree with n_children[d] children below every node of depth d.
py::array_t<int64_t> count_pairs(const std::string& name, const FloatArray& target,
                                 const FloatArray& draft, const Sampler& sampler,
                                 const std::vector<int>& n_children, int64_t n) {
  const auto n_vocab = static_cast<size_t>(target.shape(1));
  if (target.shape(0) != target.shape(1) + 1 || draft.shape(0) != target.shape(0) ||
      draft.shape(1) != target.shape(1))
    throw ShapeError("count_pairs: expected (n_vocab + 1, n_vocab) logits");
  const auto row = [&](const FloatArray& logits, int32_t token) {
    return std::span(logits.data() + static_cast<size_t>(token + 1) * n_vocab, n_vocab);
  };
  const Policy& policy = policy_named(name);
  std::vector<int64_t> counts(n_vocab * n_vocab);
  for (int64_t pair = 0; pair < n; ++pair) {
    std::vector<int32_t> emitted = {-1};
    while (emitted.size() < 3) {
      const auto position = 4 * pair + static_cast<int64_t>(emitted.size());
      std::vector<int32_t> tokens, parents;
      std::vector<Law> laws;
      std::vector<size_t> depths;
      for (size_t node = 0; node <= tokens.size(); ++node) {
        const size_t depth = node == 0 ? 0 : depths[node - 1];
        laws.emplace_back();
        if (depth == n_children.size()) continue;
        const int32_t token = node == 0 ? emitted.back() : tokens[node - 1];
        Guesses guesses =
            sampler.guess(row(draft, token), position + static_cast<int64_t>(depth) + 1, {},
                          n_children[depth], Purpose::Draft);
        laws.back() = std::move(guesses.law);
        for (const Guess& g : guesses.tokens) {
          tokens.push_back(g.token);
          parents.push_back(static_cast<int32_t>(node) - 1);
          depths.push_back(depth + 1);
        }
      }
      const DraftView view{.tree = {.tokens = tokens, .parents = parents, .laws = laws},
                           .sampler = sampler,
                           .position = position};
      const auto verifier = make_verifier(policy, view);
      for (size_t r = 0; r <= tokens.size(); ++r)
        verifier->look(r, row(target, r == 0 ? emitted.back() : tokens[r - 1]));
      for (const Sampled& s : verifier->walk().drawn) emitted.push_back(s.token);
    }
    ++counts[static_cast<size_t>(emitted[1]) * n_vocab + static_cast<size_t>(emitted[2])];
  }
  return py::array_t<int64_t>({target.shape(1), target.shape(1)}, counts.data());
}

}  // namespace

void register_testing(py::module_& m) {
  py::module_ testing = m.def_submodule("testing", "What only tests use.");
  py::class_<Chance, PyChance>(testing, "Chance")
      .def(py::init<>())
      .def("accept", &Chance::accept)
      .def("draw", [](Chance& c, const std::vector<double>& weights) { return c.draw(weights); });
  testing.def(
      "keyed_chance",
      [](uint64_t seed, uint32_t stream, int64_t position) -> std::unique_ptr<Chance> {
        return std::make_unique<KeyedChance>(seed, stream, position);
      },
      py::arg("seed"), py::arg("stream"), py::arg("position"),
      "What policies decide by below the root at a position.");
  testing.def("walk", &walk, py::arg("policy"), py::arg("tokens"), py::arg("parents"),
              py::arg("laws"), py::arg("target"), py::arg("chance"),
              "The accepted nodes, and the token drawn after them; target: a law per row.");
  testing.def(
      "guess",
      [](const Sampler& sampler, const FloatArray& logits, int64_t position, int n, bool law) {
        const Guesses g = sampler.guess({logits.data(), static_cast<size_t>(logits.size())},
                                        position, {}, n, law ? Purpose::Draft : Purpose::Sample);
        return std::pair(pairs_of(g.tokens, &Guess::probability),
                         pairs_of(g.law, &Weighted::weight));
      },
      py::arg("sampler"), py::arg("logits"), py::arg("position"), py::arg("n"), py::arg("law"));
  testing.def("count_pairs", &count_pairs, py::arg("policy"), py::arg("target"), py::arg("draft"),
              py::arg("sampler"), py::arg("n_children"), py::arg("n"),
              "(n_vocab, n_vocab): how often two tokens followed each other, in n runs.");
}

}  // namespace pyflow
