// Inferflow's rule (Shi et al., 2024, section 8): accept a drafted token if the sampler's stages
// keep it as a candidate, however unlikely it is; if no child is kept, draw from the model's
// distribution.
//
// Lossy: for one child drawn from q, and with S the kept tokens, x is emitted with probability
// q(x) [x in S] + (1 - q(S)) p(x). But no token that the model could not draw is ever emitted.
#include "sample/policies/policies.h"

namespace pyflow {

Outcome verify_flexible(const DraftTree& tree, std::span<const Distribution> target, Rng& rng) {
  Outcome out;
  for (int32_t node = -1;;) {
    const Distribution& p = target[static_cast<size_t>(node + 1)];
    int32_t child = tree.first_child(node);
    while (child >= 0 && weight_of(p, tree.tokens[static_cast<size_t>(child)]) == 0)
      child = tree.next_sibling(child);
    if (child < 0) {
      out.last = draw(p, rng);
      return out;
    }
    out.nodes.push_back(node = child);
  }
}

}  // namespace pyflow
