// Rejection sampling: drafts drawn at random are accepted as often as the model's law allows, and
// what is emitted has that law exactly (Leviathan et al., 2023; Chen et al., 2023; for trees the
// recursive form of Yang et al., 2024, and Jeon et al., 2024).
//
// Let p be the law after a row, and let its children x1, x2, ... be tried in the order in which
// they were drawn. If xi has the law q, given all that was drawn and rejected before it, then
//   accept xi with probability min(1, p(xi) / q(xi)); else go on with p := max(0, p - q), scaled to
//   sum 1; if none is left, draw from p.
// One stage leaves the law p if what follows a rejection has the residual's law: from the last
// stage back to the first, the token emitted has the law p. Drawing without replacement, q after a
// draw is q without the drawn token; siblings then never waste a row on the same token twice, which
// drawing with replacement would. A child that was not drawn at random has the law of a certainty:
// it is accepted with probability p(xi), and otherwise leaves p.
//
// The order matters: sorted by q, say, x1 has another law than q, and so have the tokens emitted.
// For the same reason nobody may leave out a node because of which token it is.
#include <algorithm>

#include "sample/policies/walk.h"

namespace pyflow {
namespace {

// p without q, both with their sums: p / sum_p - q / sum_q where that is positive, times both sums.
Law residual(const Law& p, double sum_p, const Law& q, double sum_q) {
  Law out;
  auto at = q.begin();
  for (const auto& [token, weight] : p) {
    while (at != q.end() && at->token < token) ++at;
    const double taken = at != q.end() && at->token == token ? at->weight * sum_p : 0.0;
    const double left = weight * sum_q - taken;
    if (left > 0) out.push_back({token, left});
  }
  return out;
}

}  // namespace

Walked walk_rejection(const TreeView& tree, std::span<const Law> target, Chance& chance) {
  Walked out;
  for (int32_t node = -1;;) {
    const auto row = static_cast<size_t>(node + 1);
    Law p = target[row];
    Law q = tree.laws.empty() ? Law() : tree.laws[row];
    const bool drawn = !q.empty();
    double sum_p = rescale(p), sum_q = rescale(q);
    int32_t child = tree.first_child(node);
    for (; child >= 0; child = tree.next_sibling(child)) {
      const int32_t token = tree.tokens[static_cast<size_t>(child)];
      if (!drawn) q = {{token, sum_q = 0.5}};
      if (chance.accept(weight_of(p, token) * sum_q, weight_of(q, token) * sum_p)) break;
      // Nothing is left where p equals q but for rounding: then p will do.
      if (Law left = residual(p, sum_p, q, sum_q); !left.empty()) {
        p = std::move(left);
        sum_p = rescale(p);
      }
      std::erase_if(q, [&](const Weighted& w) { return w.token == token; });
      sum_q = rescale(q);
    }
    if (child < 0) {
      out.last = draw(p, chance);
      return out;
    }
    out.nodes.push_back(node = child);
  }
}

}  // namespace pyflow
