// The walks of policies that decide at random: from the root of a tree down to the first token that
// is not accepted. What the model would draw after each row, and what the tree's nodes were drawn
// from, are laws; the rest is chance.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sample/chance.h"
#include "sample/law.h"

namespace pyflow {

// A tree of guesses below a root: node i is tokens[i] after node parents[i], which is below i, or
// after the root where it is -1. Row 0 is the root's, row i + 1 that of node i.
struct TreeView {
  std::span<const int32_t> tokens, parents;
  // By row, or none at all: its children were drawn from this law, in the order of the nodes and
  // without replacement; an empty law says that they were not drawn at random.
  std::span<const Law> laws;

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

// Throws ShapeError unless every token has a parent, which comes before it, and every row a law, if
// any has.
void check_tree(const TreeView& tree);
// Throws ShapeError for laws that the nodes cannot have been drawn from.
void check_laws(const TreeView& tree);

struct Walked {
  std::vector<int32_t> nodes;  // accepted, from the root on
  int32_t last = -1;           // the token drawn after them
};

// target: by row, what the model would draw after it.
using Walk = Walked (*)(const TreeView& tree, std::span<const Law> target, Chance& chance);

Walked walk_rejection(const TreeView& tree, std::span<const Law> target, Chance& chance);
Walked walk_flexible(const TreeView& tree, std::span<const Law> target, Chance& chance);
Walked walk_typical(const TreeView& tree, std::span<const Law> target, Chance& chance);

int32_t draw(const Law& law, Chance& chance);

}  // namespace pyflow
