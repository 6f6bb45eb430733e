// How tokens are drawn. Names and values that switch a stage off are llama.cpp's where it has them.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace pyflow {

class BannedStrings;
class DryBreakers;

struct SamplerParams {
  float temperature = 0.8f;     // 0: greedy
  float dynatemp_range = 0.0f;  // 0: off
  float dynatemp_exponent = 1.0f;
  int top_k = 40;                // 0: off
  float top_p = 0.95f;           // 1: off
  float min_p = 0.05f;           // 0: off
  float top_n_sigma = -1.0f;     // 0 and below: off
  float tfs_z = 1.0f;            // 1: off
  float typical_p = 1.0f;        // 1: off
  float xtc_probability = 0.0f;  // 0: off
  float xtc_threshold = 0.1f;    // above 0.5: off
  float repeat_penalty = 1.0f;   // 1: off
  int repeat_last_n = 64;        // tokens that all penalties look back; 0: off, -1: all
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float dry_multiplier = 0.0f;  // 0: off
  float dry_base = 1.75f;
  int dry_allowed_length = 2;
  int dry_penalty_last_n = -1;                          // 0: off, -1: all
  std::shared_ptr<const DryBreakers> dry_breakers;      // null: none
  std::shared_ptr<const BannedStrings> banned_strings;  // null: none
  std::vector<std::pair<int32_t, float>> logit_bias;    // -inf forbids a token
  int mirostat = 0;                                     // 0: off
  float mirostat_tau = 5.0f;
  float mirostat_eta = 0.1f;
  int fsd = 0;  // 0: off, 1: deterministic, 2: randomized
  float fsd_alpha = 0.65f;
  int fsd_k = 3;
  int fsd_n = 3;
  float fsd_beta = 0.9f;
  int fsd_random_n = 10;
  float fsd_random_p = 0.5f;
  uint64_t seed = 0;
  uint32_t stream = 0;
  int n_logprobs = 0;  // how many of the likeliest tokens to report

  bool penalizes() const;
  bool uses_dry() const { return dry_multiplier > 0 && dry_penalty_last_n != 0; }
  // Only top-k, top-p, min-p and temperature choose among the tokens.
  bool is_plain() const;
  // Tokens before a draw that it depends on, at most; -1: all.
  int64_t n_looked_back() const;
};

// Throws Error, naming the parameter, for one out of its range.
SamplerParams checked(SamplerParams params);

}  // namespace pyflow
