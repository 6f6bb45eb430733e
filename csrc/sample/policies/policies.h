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
struct TreeView {
  std::span<const int32_t> tokens, parents;
  // Per row, or empty: the distribution that the row's children were drawn from, in the order of
  // the nodes and without replacement; an empty distribution if they were not drawn at random.
  std::span<const Distribution> distributions;

  size_t n_rows() const { return tokens.size() + 1; }
  // The tokens below the root on the way to a row, its own included.
  std::vector<int32_t> path(size_t row) const;
  // Nodes, -1 for none.
  int32_t first_child(int32_t parent) const { return child_from(parent + 1, parent); }
  int32_t next_sibling(int32_t node) const {
    return child_from(node + 1, parents[static_cast<size_t>(node)]);
  }

 private:
  int32_t child_from(int32_t node, int32_t parent) const;
};

// Throws ShapeError unless every token has a parent before it and either all rows or none have
// distributions.
void check_tree(const TreeView& tree);
// Throws ShapeError if the nodes cannot have been drawn from their distributions.
void check_distributions(const TreeView& tree);

struct Outcome {
  std::vector<int32_t> nodes;  // accepted, from the root on
  int32_t last = -1;           // the token drawn after them
};

// target: per row, the distribution that the model would draw from after it.
using Verify = Outcome (*)(const TreeView& tree, std::span<const Distribution> target, Rng& rng);

Outcome verify_rejection(const TreeView& tree, std::span<const Distribution> target, Rng& rng);
Outcome verify_flexible(const TreeView& tree, std::span<const Distribution> target, Rng& rng);
Outcome verify_typical(const TreeView& tree, std::span<const Distribution> target, Rng& rng);

int32_t draw(const Distribution& distribution, Rng& rng);

}  // namespace pyflow
