// One step for everything: chunks of prompts, decoding, trees of drafts, and rows that are reported,
// of any sequences in one pass over the weights. An entry is what a step does for one sequence.
#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/context.h"
#include "sample/verify.h"

namespace pyflow {

// Asks how likely a token is after a given one.
struct Report {
  int32_t row;     // of the entry's tokens
  int32_t target;  // the token
  int n_top = 0;   // how many of the likeliest to name
};

// The row of the last draw, among the rows whose hidden state is wanted.
inline constexpr int32_t kDrawnRow = -1;

inline constexpr int32_t kNextPosition = -1, kLastToken = -1;

struct Entry {
  int seq;
  std::vector<int32_t> tokens;       // at least one, at consecutive positions: all stand
  int32_t position = kNextPosition;  // of the first one; the next of the sequence, or a later one
  DraftTree tree;                    // below one of them
  int32_t root = kLastToken;         // which one
  // Draws after the last token, and after nodes of the tree; it has accepted the tokens. Null:
  // nothing is drawn, and the tree is empty.
  Sampler* sampler = nullptr;
  std::string policy = "exact";
  // Above 0, for tokens that are guesses themselves: the sampler draws after each of the last
  // n_draws of them, nothing of the tree is verified, and nothing is accepted. `path` are the
  // tokens between those that the sampler has accepted and the first one here.
  int32_t n_draws = 0;
  std::vector<int32_t> path;
  std::vector<int32_t> stops;   // tokens after which nothing is accepted
  std::vector<int32_t> asked;   // nodes (-1: the root) whose likeliest next token is wanted
  std::vector<uint32_t> masks;  // what may be drawn after the last token and after each node that
                                // may be accepted; empty: everything
  std::vector<Report> reports;  // ascending by row
  std::vector<int32_t> hidden;  // rows of the tokens, or kDrawnRow: the head's input is wanted
  Regime regime = Regime::Decode;
};

struct EntryResult {
  Verdict verdict;               // empty without a sampler
  std::vector<int32_t> answers;  // one per asked
  std::vector<Sampled> reports;  // one per report; the token is the target
  std::vector<float> hidden;     // n_embd for each row
  std::exception_ptr error;      // why the entry has changed nothing; null: it was done
};

// Hidden states of the rows, n_embd each, where a step does not begin with the embedding. On a stage
// behind another one they are what that has computed, of all rows: entries of prompts first, and of
// each entry its tokens, then its nodes. Above layer 0 they are those of the only entry's last token
// and nodes, which are pending and have run the layers below.
struct Begun {
  int64_t first_layer = 0;
  std::span<const float> hidden;
};

// Runs the entries. Given and accepted tokens become cells of their sequences; samplers accept all
// that was drawn. An entry that cannot be done has its error and leaves no trace; the others go on.
// On a stage without a head nothing can be drawn, asked or reported: Context::copy_hidden has what
// the next stage needs. Throws as Context::run does if the step as a whole cannot be made; then nothing has changed and
// nothing is pending.
std::vector<EntryResult> step(Context& context, std::span<const Entry> entries, const Begun& begun,
                              const std::function<bool()>& poll);

}  // namespace pyflow
