#include "model/heads/guess_tree.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>

#include "core/portable_math.h"

namespace pyflow {

GrowingTree::GrowingTree(int32_t root, const GuessLimits& limits)
    : limits_(limits), wanted_{{-1, root, -1}} {}

void GrowingTree::keep_likeliest() {
  const auto n = static_cast<size_t>(limits_.n_nodes);
  if (kept_.size() <= n) return;
  const auto likelier = [&](int64_t a, int64_t b) {
    const float pa = nodes_[static_cast<size_t>(a)].path, pb = nodes_[static_cast<size_t>(b)].path;
    return pa != pb ? pa > pb : a < b;
  };
  std::ranges::nth_element(kept_, kept_.begin() + static_cast<std::ptrdiff_t>(n), likelier);
  kept_.resize(n);
  std::ranges::sort(kept_);
}

void GrowingTree::take(std::span<const std::vector<Guess>> guesses) {
  for (size_t i = 0; i < level_.size(); ++i) {
    const float before = level_[i] < 0 ? 1 : nodes_[static_cast<size_t>(level_[i])].path;
    for (const Guess& guess : guesses[std::min(i, guesses.size() - 1)]) {
      const float path = before * guess.probability;
      if (!(path > 0) || path < limits_.least) break;
      kept_.push_back(std::ssize(nodes_));
      nodes_.push_back({guess.token, level_[i], guess.probability, path, depth_});
    }
  }
  number_.resize(nodes_.size(), -1);
  keep_likeliest();
  // In a full tree, no child of the least likely node finds room.
  const auto path_of = [&](int64_t i) { return nodes_[static_cast<size_t>(i)].path; };
  float least = -1;
  if (std::ssize(kept_) == limits_.n_nodes)
    least = path_of(std::ranges::min(kept_, std::less{}, path_of));
  level_.clear();
  wanted_.clear();
  float reach = 0;
  for (const int64_t i : kept_)
    if (nodes_[static_cast<size_t>(i)].level == depth_ && path_of(i) > least) {
      level_.push_back(i);
      reach += path_of(i);
    }
  if (++depth_ >= limits_.depth || reach < limits_.least_level) level_.clear();
  for (const int64_t i : level_) {
    const Node& node = nodes_[static_cast<size_t>(i)];
    number_[static_cast<size_t>(i)] = n_extended_++;
    const int32_t parent = node.parent < 0 ? -1 : number_[static_cast<size_t>(node.parent)];
    wanted_.push_back({number_[static_cast<size_t>(i)], node.token, parent});
  }
}

GuessTree GrowingTree::tree() const {
  GuessTree tree;
  for (const int64_t i : kept_) {
    const Node& node = nodes_[static_cast<size_t>(i)];
    const auto at = std::ranges::lower_bound(kept_, node.parent);
    tree.tokens.push_back(node.token);
    tree.parents.push_back(node.parent < 0 ? -1 : static_cast<int32_t>(at - kept_.begin()));
    tree.probabilities.push_back(node.probability);
  }
  return tree;
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
