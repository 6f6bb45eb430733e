// Rows of logits of which members bring together only what can decide a draw (Sampler::deciding),
// instead of all of them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "model/cut.h"
#include "sample/sampler.h"

namespace pyflow {

struct Step;

// What is made of the logits that a step wants.
struct Deciding {
  int64_t most = kAllTokens;  // tokens of a row that one member can have
  // Of row i of those wanted, from the columns of one member; false: all logits are needed.
  std::function<bool(int64_t i, std::span<const float> logits, const Share& own,
                     std::vector<Candidate>& out)>
      of = nullptr;

  // Whether these are fewer bytes than all logits.
  bool pays(int64_t n_vocab, int64_t n_members) const;
};

// Some of the rows that are wanted, from `first` on.
struct LogitRows {
  float* rows;
  int64_t stride, n, n_vocab;
  int64_t first;
};

// By the team, after a barrier; ends with one. True: the rows have the deciding tokens of all members, and
// -inf elsewhere. False: all logits are needed, and own columns are as they were.
bool gather_deciding(const Step&, Team&, const LogitRows&, const Shares& vocab, const Deciding&);

}  // namespace pyflow
