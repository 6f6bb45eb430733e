// Which drafted tokens stand: a walk from the root of a tree down to the first token that the model
// itself draws and nobody guessed.
//
// A policy first looks at the logits of every row that may be accepted, in any order and in several
// threads, and then walks. `exact` draws at every row what plain decoding would draw there: the
// noise of a draw depends on its position alone (noise.h), so the tokens are those of plain
// decoding, greedy or sampled, whatever the tree is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sample/sampler.h"

namespace pyflow {

// A tree of guesses below a root: node i is tokens[i] after node parents[i], which is below i, or
// after the root where it is -1. Row 0 is the root's, row i + 1 that of node i.
struct DraftView {
  std::span<const int32_t> tokens, parents;
  const Sampler& sampler;  // has accepted the text up to the root
  int64_t position;        // of the root

  size_t n_rows() const { return tokens.size() + 1; }
  // The tokens below the root on the way to a row, its own included.
  std::vector<int32_t> path(size_t row) const;
};

struct Verdict {
  std::vector<int32_t> nodes;  // accepted, from the root on
  std::vector<Sampled> drawn;  // their tokens, and one more that was not drafted or ends the walk
};

class Verifier {
 public:
  virtual ~Verifier() = default;
  // Called once for every row; by several threads at once, for different rows.
  virtual void look(size_t row, std::span<const float> logits) = 0;
  // Called once, after all rows.
  virtual Verdict walk() = 0;
};

// Throws ShapeError unless every token has a parent, and that comes before it.
void check_tree(std::span<const int32_t> tokens, std::span<const int32_t> parents);

// Throws UnsupportedError for a policy that there is not, ShapeError for a tree that is none. The
// view's data must outlive the verifier.
std::unique_ptr<Verifier> make_verifier(const std::string& policy, const DraftView& draft);

}  // namespace pyflow
