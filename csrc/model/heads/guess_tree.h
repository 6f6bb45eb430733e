// Grows a tree of guesses, level by level, from what heads say.
//
// The tree holds the n_nodes likeliest nodes by the product of the heads' probabilities along their
// paths. A node is no likelier than its parent, so these are a tree. Ties keep the earlier node.
#pragma once

#include <cstdint>
#include <functional>
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

// Per node of a level, up to n guesses at what follows it, likeliest first. `level` is 0 for the
// root. Fewer lists than nodes: the last one serves all others.
using GuessNext = std::function<std::vector<std::vector<Guess>>(
    int64_t level, std::span<const Extended> nodes, int64_t n)>;

// Numbers that `next` gets are of all nodes ever extended, in the order of the calls.
GuessTree grow_tree(int32_t root, const GuessLimits& limits, const GuessNext& next);

// The n likeliest columns of a row of logits, the first of equals first; log_sum is the logarithm of
// the sum of all exp(logit). None if that is not finite.
std::vector<Guess> likeliest(std::span<const float> logits, double log_sum, int64_t n);

}  // namespace pyflow
