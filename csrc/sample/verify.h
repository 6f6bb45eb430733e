// Verification: which drafted tokens are accepted. It walks from the root of a tree down to the
// first token that the model draws and nobody drafted.
//
// A policy first looks at the logits of every row that may be accepted, in any order and in several
// threads, and then decides. `exact` draws at every row what plain decoding would draw there: the
// noise of a draw depends on its position alone (noise.h), so the tokens are those of plain
// decoding, greedy or sampled, for any tree. Mirostat's draws depend on the rows above, so it keeps
// the logits and draws on the way down. The others are in policies/, a file each; at
// temperature 0 all do what `exact` does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sample/policies/policies.h"
#include "sample/sampler.h"

namespace pyflow {

struct Verdict {
  std::vector<int32_t> nodes;  // accepted, from the root on
  std::vector<Sampled> drawn;  // their tokens, and one more that was not drafted or ends the walk
};

class Verifier {
 public:
  virtual ~Verifier() = default;
  // As Sampler's, of the logits of a row that is looked at.
  virtual int64_t n_deciding(int64_t n_vocab) const = 0;
  virtual bool deciding(size_t row, std::span<const float> logits, int64_t first, int64_t end,
                        std::vector<Candidate>& out) const = 0;
  // Called once for every row; by several threads at once, for different rows.
  virtual void look(size_t row, std::span<const float> logits) = 0;
  // Called once, after all rows.
  virtual Verdict walk() = 0;
};

struct Policy {
  const char* name;
  // What the output shares with that of plain decoding: exact, the tokens; distribution, their
  // distribution; lossy, neither.
  const char* promise;
  Verify verify;  // null: draws what plain decoding draws
};

std::span<const Policy> policies();
// Throws UnsupportedError for an unknown policy.
const Policy& policy_named(const std::string& name);

// The masks of the rows that are looked at, one behind the other; none: all tokens may be drawn.
struct RowMasks {
  std::span<const uint32_t> words;
  size_t words_per_row = 0;
  TokenMask row(size_t i) const {
    return words.empty() ? words : words.subspan(i * words_per_row, words_per_row);
  }
};

// sampler: has accepted the text up to the root, which lies at the position. Throws ShapeError for
// an invalid tree. Tree, sampler and masks must outlive the verifier.
std::unique_ptr<Verifier> make_verifier(const Policy& policy, const DraftTree& tree,
                                        const Sampler& sampler, int64_t position,
                                        RowMasks masks = {});

}  // namespace pyflow
