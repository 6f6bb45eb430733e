#include "model/heads/guess_tree.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>

#include "core/portable_math.h"

namespace pyflow {
namespace {

struct Node {
  int32_t token;
  int64_t parent;  // among all nodes; -1: the root
  float probability, path;
  int64_t level;
};

// The n likeliest nodes, in their order.
void keep_likeliest(const std::vector<Node>& nodes, std::vector<int64_t>& kept, size_t n) {
  if (kept.size() <= n) return;
  const auto likelier = [&](int64_t a, int64_t b) {
    const float pa = nodes[static_cast<size_t>(a)].path, pb = nodes[static_cast<size_t>(b)].path;
    return pa != pb ? pa > pb : a < b;
  };
  std::ranges::nth_element(kept, kept.begin() + static_cast<std::ptrdiff_t>(n), likelier);
  kept.resize(n);
  std::ranges::sort(kept);
}

GuessTree tree_of(const std::vector<Node>& nodes, const std::vector<int64_t>& kept) {
  GuessTree tree;
  for (const int64_t i : kept) {
    const Node& node = nodes[static_cast<size_t>(i)];
    const auto at = std::ranges::lower_bound(kept, node.parent);
    tree.tokens.push_back(node.token);
    tree.parents.push_back(node.parent < 0 ? -1 : static_cast<int32_t>(at - kept.begin()));
    tree.probabilities.push_back(node.probability);
  }
  return tree;
}

}  // namespace

GuessTree grow_tree(int32_t root, const GuessLimits& limits, const GuessNext& next) {
  std::vector<Node> nodes;
  std::vector<int64_t> kept, level = {-1};
  std::vector<int32_t> number;  // by node: when it was extended
  int32_t n_extended = 0;
  const auto number_of = [&](int64_t node) {
    return node < 0 ? -1 : number[static_cast<size_t>(node)];
  };
  for (int64_t depth = 0; depth < limits.depth && !level.empty(); ++depth) {
    std::vector<Extended> extended;
    for (const int64_t i : level) {
      if (i < 0) {
        extended.push_back({-1, root, -1});
        continue;
      }
      number[static_cast<size_t>(i)] = n_extended++;
      const Node& node = nodes[static_cast<size_t>(i)];
      extended.push_back({number_of(i), node.token, number_of(node.parent)});
    }
    const auto guesses = next(depth, extended, std::min(limits.n_nodes, limits.width));
    for (size_t i = 0; i < level.size(); ++i) {
      const float before = level[i] < 0 ? 1 : nodes[static_cast<size_t>(level[i])].path;
      for (const Guess& guess : guesses[std::min(i, guesses.size() - 1)]) {
        const float path = before * guess.probability;
        if (!(path > 0) || path < limits.least) break;
        kept.push_back(std::ssize(nodes));
        nodes.push_back({guess.token, level[i], guess.probability, path, depth});
      }
    }
    number.resize(nodes.size(), -1);
    keep_likeliest(nodes, kept, static_cast<size_t>(limits.n_nodes));
    // In a full tree, no child of the least likely node finds room.
    const auto path_of = [&](int64_t i) { return nodes[static_cast<size_t>(i)].path; };
    float least = -1;
    if (std::ssize(kept) == limits.n_nodes)
      least = path_of(std::ranges::min(kept, std::less{}, path_of));
    level.clear();
    float reach = 0;
    for (const int64_t i : kept)
      if (nodes[static_cast<size_t>(i)].level == depth && path_of(i) > least) {
        level.push_back(i);
        reach += path_of(i);
      }
    if (reach < limits.least_level) break;
  }
  return tree_of(nodes, kept);
}

std::vector<Guess> likeliest(std::span<const float> logits, double log_sum, int64_t n) {
  std::vector<Guess> best;  // with logits in place of probabilities, likeliest first
  if (!std::isfinite(log_sum)) return best;
  const auto room = static_cast<size_t>(n);
  float least = -INFINITY;
  for (size_t i = 0; i < logits.size(); ++i) {
    if (!(logits[i] > least) && best.size() == room) continue;
    const auto at = std::ranges::upper_bound(best, logits[i], std::greater{}, &Guess::probability);
    best.insert(at, {static_cast<int32_t>(i), logits[i]});
    if (best.size() > room) best.pop_back();
    least = best.back().probability;
  }
  for (Guess& guess : best)
    guess.probability =
        static_cast<float>(portable::exp(static_cast<double>(guess.probability) - log_sum));
  return best;
}

}  // namespace pyflow
