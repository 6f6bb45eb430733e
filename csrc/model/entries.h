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

struct Entry {
  int seq;
  std::vector<int32_t> tokens;  // at least one, for the next positions of the sequence: all stand
  DraftTree tree;               // drafted below the last of them
  // Draws after the last token, and after nodes of the tree; it has accepted the tokens. Null:
  // nothing is drawn, and the tree is empty.
  Sampler* sampler = nullptr;
  std::string policy = "exact";
  std::vector<int32_t> stops;   // tokens after which nothing is accepted
  std::vector<int32_t> asked;   // nodes (-1: the last token) whose likeliest next token is wanted
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

// The rows of the only entry, its last token and the nodes, that are pending and have run the layers
// below `first_layer`; `features` are their hidden states.
struct Resumed {
  int64_t first_layer = 0;
  std::span<const float> features;
};

// Runs the entries. Given and accepted tokens become cells of their sequences; samplers accept all
// that was drawn. An entry that cannot be done has its error and leaves no trace; the others go on.
// Throws as Context::run does if the step as a whole cannot be made; then nothing has changed and
// nothing is pending.
std::vector<EntryResult> step(Context& context, std::span<const Entry> entries,
                              const Resumed& resumed, const std::function<bool()>& poll);

}  // namespace pyflow
