// Rejection sampling: randomly drawn drafts are accepted as often as the model's distribution
// allows, and the output has exactly that distribution (Leviathan et al., 2023; Chen et al., 2023;
// for trees the recursive form of Yang et al., 2024, and Jeon et al., 2024).
//
// Let p be the distribution after a row. Try its children x1, x2, ... in the order in which they
// were drawn. If xi was drawn from q, given all that was drawn and rejected before it:
//   accept xi with probability min(1, p(xi) / q(xi)); else continue with p := max(0, p - q), scaled
//   to sum 1; if no child is left, draw from p.
// One stage emits p if a rejection is followed by the residual's distribution; so, from the last
// stage back to the first, the emitted token has the distribution p. Drawing without replacement,
// q after a draw is q without the drawn token; so siblings never waste a row on one token twice. A
// child that was not drawn at random has a distribution with one token: it is accepted with
// probability p(xi), and a rejection removes it from p.
//
// The order matters: if children were sorted by q, say, x1 would not be distributed as q, and the
// output not as p. For the same reason no node may be left out because of its token.
#include <algorithm>

#include "sample/policies/policies.h"

namespace pyflow {
namespace {

// The positive part of p / sum_p - q / sum_q, times both sums.
Distribution residual(const Distribution& p, double sum_p, const Distribution& q, double sum_q) {
  Distribution out;
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

Outcome verify_rejection(const DraftTree& tree, std::span<const Distribution> target, Rng& rng) {
  Outcome out;
  for (int32_t node = -1;;) {
    const auto row = static_cast<size_t>(node + 1);
    Distribution p = target[row];
    Distribution q = tree.distributions.empty() ? Distribution() : tree.distributions[row];
    const bool drawn = !q.empty();
    double sum_p = rescale(p), sum_q = rescale(q);
    int32_t child = tree.first_child(node);
    for (; child >= 0; child = tree.next_sibling(child)) {
      const int32_t token = tree.tokens[static_cast<size_t>(child)];
      if (!drawn) q = {{token, sum_q = 0.5}};
      if (rng.accept(weight_of(p, token) * sum_q, weight_of(q, token) * sum_p)) break;
      // If p equals q but for rounding, nothing is left; then keep p.
      if (Distribution left = residual(p, sum_p, q, sum_q); !left.empty()) {
        p = std::move(left);
        sum_p = rescale(p);
      }
      std::erase_if(q, [&](const Weighted& w) { return w.token == token; });
      sum_q = rescale(q);
    }
    if (child < 0) {
      out.last = draw(p, rng);
      return out;
    }
    out.nodes.push_back(node = child);
  }
}

}  // namespace pyflow
