// Inferflow's rule (Shi et al., 2024, section 8): a drafted token stands if the sampler's stages
// leave it in the running, however unlikely it is; if none does, the token is drawn from the
// model's law.
//
// Lossy: for one child drawn from q, and with S what the stages leave, x is emitted with
// probability q(x) [x in S] + (1 - q(S)) p(x). Never, though, a token that the model could not
// draw.
#include "sample/policies/walk.h"

namespace pyflow {

Walked walk_flexible(const TreeView& tree, std::span<const Law> target, Chance& chance) {
  Walked out;
  for (int32_t node = -1;;) {
    const Law& p = target[static_cast<size_t>(node + 1)];
    int32_t child = tree.first_child(node);
    while (child >= 0 && weight_of(p, tree.tokens[static_cast<size_t>(child)]) == 0)
      child = tree.next_sibling(child);
    if (child < 0) {
      out.last = draw(p, chance);
      return out;
    }
    out.nodes.push_back(node = child);
  }
}

}  // namespace pyflow
