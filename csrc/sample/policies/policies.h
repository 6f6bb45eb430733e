// Policies that decide at random which drafted tokens to accept, from the root of a tree down to
// the first token that is not accepted. They compare the target distributions, of the model after
// each row, with those that the tree's nodes were drawn from.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sample/distribution.h"
#include "sample/rng.h"

namespace pyflow {

// A tree of drafted tokens below a root: node i is tokens[i] after node parents[i], which is below
// i, or after the root where it is -1. Row 0 is the root's, row i + 1 that of node i.
struct DraftTree {
  std::vector<int32_t> tokens, parents;
  // Per row, or empty: the distribution that the row's children were drawn from, in the order of
  // the nodes and without replacement; an empty distribution if they were not drawn at random.
  std::vector<Distribution> distributions;
  int64_t n_verified = 0;  // nodes from here on are run, but cannot be accepted

  // Rows of the root and of the nodes that may be accepted.
  size_t n_rows() const { return static_cast<size_t>(n_verified) + 1; }
  // The tokens below the root on the way to a row, its own included.
  std::vector<int32_t> path(size_t row) const;
  // Nodes that may be accepted, -1 for none.
  int32_t first_child(int32_t parent) const { return child_from(parent + 1, parent); }
  int32_t next_sibling(int32_t node) const {
    return child_from(node + 1, parents[static_cast<size_t>(node)]);
  }

 private:
  int32_t child_from(int32_t node, int32_t parent) const;
};

// Throws ShapeError unless every token has a parent before it, either all rows or none have
// distributions, and n_verified is a number of nodes.
void check_tree(const DraftTree& tree);
// Throws ShapeError if the nodes cannot have been drawn from their distributions.
void check_distributions(const DraftTree& tree);

struct Outcome {
  std::vector<int32_t> nodes;  // accepted, from the root on
  int32_t last = -1;           // the token drawn after them
};

// target: per row, the distribution that the model would draw from after it.
using Verify = Outcome (*)(const DraftTree& tree, std::span<const Distribution> target, Rng& rng);

Outcome verify_rejection(const DraftTree& tree, std::span<const Distribution> target, Rng& rng);
Outcome verify_flexible(const DraftTree& tree, std::span<const Distribution> target, Rng& rng);
Outcome verify_typical(const DraftTree& tree, std::span<const Distribution> target, Rng& rng);

int32_t draw(const Distribution& distribution, Rng& rng);

}  // namespace pyflow
