// Grows a tree of guesses, level by level, from what heads say.
//
// The tree holds the n_nodes likeliest nodes by the product of the heads' probabilities along their
// paths. A node is no likelier than its parent, so these are a tree. Ties keep the earlier node.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace pyflow {

inline constexpr int64_t kMostGuesses = 64;

struct GuessLimits {
  int64_t n_nodes = 1;
  int64_t depth = 1;
  int64_t width = kMostGuesses;  // children of a node; 1: a chain
  float least = 0;               // probability of a path, below which a node is left out
  float least_level = 0;         // sum of these of a level, below which it is not extended
};

// Node i follows node parents[i], which is below i, or the root where it is -1.
struct GuessTree {
  std::vector<int32_t> tokens, parents;
  std::vector<float> probabilities;  // of a node if its parent is right
};

// A node that is to be extended; number -1 is the root.
struct Extended {
  int32_t number, token, parent;
};

struct Guess {
  int32_t token;
  float probability;
};

// A tree that grows by a level at a time.
class GrowingTree {
 public:
  GrowingTree(int32_t root, const GuessLimits& limits);

  // The nodes that guesses are wanted after; none: the tree is complete. Numbers are of all nodes
  // ever extended, in this order.
  std::span<const Extended> wanted() const { return wanted_; }
  // How many guesses, for each of them.
  int64_t n_guesses() const { return std::min(limits_.n_nodes, limits_.width); }
  // Per wanted node, likeliest first. Fewer lists than nodes: the last one serves all others.
  void take(std::span<const std::vector<Guess>> guesses);
  GuessTree tree() const;

 private:
  struct Node {
    int32_t token;
    int64_t parent;  // among all nodes; -1: the root
    float probability, path;
    int64_t level;
  };

  void keep_likeliest();

  GuessLimits limits_;
  std::vector<Node> nodes_;
  std::vector<int64_t> kept_, level_ = {-1};  // of a level: those that are extended
  std::vector<int32_t> number_;               // by node: when it was extended
  std::vector<Extended> wanted_;
  int32_t n_extended_ = 0;
  int64_t depth_ = 0;
};

// The n likeliest columns of a row of logits, the first of equals first; log_sum is the logarithm of
// the sum of all exp(logit). None if that is not finite.
std::vector<Guess> likeliest(std::span<const float> logits, double log_sum, int64_t n);

}  // namespace pyflow
