// One step of speculation: the drafts of several sequences run as one batch of trees, the walk
// decides, and what it accepted becomes cells.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "model/context.h"
#include "sample/verify.h"

namespace pyflow {

// A sequence's newest token and what may follow it.
struct Draft {
  int seq;
  int32_t root;  // takes the next position of the sequence
  DraftTree tree;
  std::vector<int32_t> asked;  // nodes, -1 the root, whose likeliest next token is wanted
  Sampler* sampler;
};

struct Verified {
  Verdict verdict;
  std::vector<int32_t> answers;  // by asked
  std::vector<float> hidden;     // n_embd: the head's input in the row that drew the last token
};

struct VerifyOptions {
  std::string policy = "exact";
  std::span<const int32_t> stops;  // tokens after which nothing is accepted
  bool hidden = false;
  // The rows of the only draft have run the layers below and are pending in the order of root and
  // nodes; `features` are their hidden states.
  int64_t first_layer = 0;
  std::span<const float> features;
};

// Runs and decides; the accepted tokens become cells of their sequences, and all drawn ones are
// accepted by their samplers. Throws as Context::run does, and ShapeError for a draft that is none;
// then nothing has changed and nothing is pending.
std::vector<Verified> verify(Context& context, std::span<const Draft> drafts,
                             const VerifyOptions& options, const std::function<bool()>& poll);

}  // namespace pyflow
