// Simulates decoding by a language model that looks back on one token only, and counts what it
// emits; part of the module pyflow_testing.
#include <string>
#include <vector>

#include "bindings/testing.h"
#include "sample/verify.h"

namespace pyflow {
namespace {

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
      std::vector<Distribution> distributions;
      std::vector<size_t> depths;
      for (size_t node = 0; node <= tokens.size(); ++node) {
        const size_t depth = node == 0 ? 0 : depths[node - 1];
        distributions.emplace_back();
        if (depth == n_children.size()) continue;
        const int32_t token = node == 0 ? emitted.back() : tokens[node - 1];
        Guesses guesses =
            sampler.guess(row(draft, token), {position + static_cast<int64_t>(depth) + 1},
                          n_children[depth], Purpose::Draft);
        distributions.back() = std::move(guesses.distribution);
        for (const Guess& g : guesses.tokens) {
          tokens.push_back(g.token);
          parents.push_back(static_cast<int32_t>(node) - 1);
          depths.push_back(depth + 1);
        }
      }
      const DraftTree tree{.tokens = tokens,
                           .parents = parents,
                           .distributions = distributions,
                           .n_verified = static_cast<int64_t>(tokens.size())};
      const auto verifier = make_verifier(policy, tree, sampler, position);
      for (size_t r = 0; r <= tokens.size(); ++r)
        verifier->look(r, row(target, r == 0 ? emitted.back() : tokens[r - 1]));
      for (const Sampled& s : verifier->walk().drawn) emitted.push_back(s.token);
    }
    ++counts[static_cast<size_t>(emitted[1]) * n_vocab + static_cast<size_t>(emitted[2])];
  }
  return py::array_t<int64_t>({target.shape(1), target.shape(1)}, counts.data());
}

}  // namespace

void register_count_pairs(py::module_& m) {
  m.def("count_pairs", &count_pairs, py::arg("policy"), py::arg("target"), py::arg("draft"),
        py::arg("sampler"), py::arg("n_children"), py::arg("n"),
        "(n_vocab, n_vocab): how often two tokens followed each other, in n runs.");
}

}  // namespace pyflow
