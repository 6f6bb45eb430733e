// DRY, "don't repeat yourself": a penalty for tokens that would go on with a repetition, growing
// with its length (github.com/oobabooga/text-generation-webui/pull/5677, as llama.cpp has it).
//
// Let L(t) be the longest end of the text that is also followed by t earlier in it. If L is at least
// the allowed length, the logit of t falls by multiplier * base^(L - allowed length).
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <unordered_map>
#include <vector>

#include "sample/params.h"
#include "sample/text_view.h"

namespace pyflow {

// Sequences of tokens that end a repetition: no match reaches back over one.
class DryBreakers {
 public:
  // Sequences of at least one token. Throws ShapeError for an empty one.
  explicit DryBreakers(const std::vector<std::vector<int32_t>>& sequences);

  // Whether the token is a sequence by itself; such a token is never penalized.
  bool breaks(int32_t token) const;
  // How many tokens of the last n follow the last sequence in the text; n if there is none.
  int64_t n_behind(const TextView& text, int64_t n) const;

 private:
  std::unordered_map<int32_t, std::vector<std::vector<int32_t>>> tails_;  // by the first token
};

namespace stages {

// What to take off the logits of tokens.
std::map<int32_t, double> dry(const TextView& text, const SamplerParams& params);

}  // namespace stages
}  // namespace pyflow
