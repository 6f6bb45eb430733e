#include "sample/policies/policies.h"

#include <algorithm>
#include <string>

#include "core/errors.h"

namespace pyflow {

std::vector<int32_t> DraftTree::path(size_t row) const {
  std::vector<int32_t> out;
  for (auto node = static_cast<int32_t>(row) - 1; node >= 0;
       node = parents[static_cast<size_t>(node)])
    out.push_back(tokens[static_cast<size_t>(node)]);
  std::ranges::reverse(out);
  return out;
}

int32_t DraftTree::child_from(int32_t node, int32_t parent) const {
  for (auto i = static_cast<size_t>(node); i + 1 < n_rows(); ++i)
    if (parents[i] == parent) return static_cast<int32_t>(i);
  return -1;
}

void check_tree(const DraftTree& tree) {
  if (tree.tokens.size() != tree.parents.size())
    throw ShapeError("draft: expected a parent for each of " + std::to_string(tree.tokens.size()) +
                     " tokens, found " + std::to_string(tree.parents.size()));
  for (size_t i = 0; i < tree.parents.size(); ++i)
    if (tree.parents[i] < -1 || tree.parents[i] >= static_cast<int32_t>(i))
      throw ShapeError("draft: parent " + std::to_string(tree.parents[i]) + " of node " +
                       std::to_string(i) + ": expected a node before it, or -1");
  const size_t n = tree.tokens.size();
  if (!tree.distributions.empty() && tree.distributions.size() != n + 1)
    throw ShapeError("draft: distributions: expected " + std::to_string(n + 1) +
                     ", the root's and one per node, or none; found " +
                     std::to_string(tree.distributions.size()));
  if (tree.n_verified < 0 || tree.n_verified > static_cast<int64_t>(n))
    throw ShapeError("draft: n_verified: expected 0 to " + std::to_string(n) + ", found " +
                     std::to_string(tree.n_verified));
}

void check_distributions(const DraftTree& tree) {
  if (tree.distributions.empty()) return;
  for (size_t i = 0; i + 1 < tree.n_rows(); ++i) {
    const Distribution& distribution = tree.distributions[static_cast<size_t>(tree.parents[i] + 1)];
    if (distribution.empty()) continue;
    const auto node = [&] {
      return std::string("draft: node ") + std::to_string(i) + ", token " +
             std::to_string(tree.tokens[i]);
    };
    if (weight_of(distribution, tree.tokens[i]) == 0)
      throw ShapeError(node() + ": impossible by the distribution that it was drawn from");
    for (int32_t s = tree.next_sibling(static_cast<int32_t>(i)); s >= 0; s = tree.next_sibling(s))
      if (tree.tokens[static_cast<size_t>(s)] == tree.tokens[i])
        throw ShapeError(node() + ": drawn a second time as node " + std::to_string(s));
  }
}

int32_t draw(const Distribution& distribution, Rng& rng) {
  std::vector<double> weights;
  weights.reserve(distribution.size());
  for (const Weighted& w : distribution) weights.push_back(w.weight);
  return distribution[rng.draw(weights)].token;
}

}  // namespace pyflow
