// One step of speculation: run the drafts of several sequences as one batch of trees, verify them,
// and turn the accepted tokens into cells.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/context.h"
#include "sample/verify.h"

namespace pyflow {

// A sequence's newest token, the root, and the drafted tokens after it.
struct Draft {
  int seq;
  int32_t root;  // takes the next position of the sequence
  DraftTree tree;
  std::vector<int32_t> asked;  // nodes (-1: the root) whose likeliest next token is wanted
  Sampler* sampler;
};

struct Verified {
  Verdict verdict;
  std::vector<int32_t> answers;  // one per asked
  std::vector<float> hidden;     // n_embd: the head's input in the row that drew the last token
};

struct VerifyOptions {
  std::string policy = "exact";
  std::span<const int32_t> stops;  // tokens after which nothing is accepted
  bool hidden = false;
  // If above 0: the rows of the only draft, root and nodes, are pending and have run the layers
  // below; `features` are their hidden states.
  int64_t first_layer = 0;
  std::span<const float> features;
};

// Runs and decides. Accepted tokens become cells of their sequences; samplers accept all drawn
// tokens. Throws as Context::run does, and ShapeError for an invalid draft; then nothing has
// changed and nothing is pending.
std::vector<Verified> verify(Context& context, std::span<const Draft> drafts,
                             const VerifyOptions& options, const std::function<bool()>& poll);

}  // namespace pyflow
