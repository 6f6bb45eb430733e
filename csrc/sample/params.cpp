#include "sample/params.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "sample/require.h"

namespace pyflow {
namespace {

void check_cuts(const SamplerParams& p) {
  require(p.temperature >= 0 && std::isfinite(p.temperature), "temperature",
          "0 (always the likeliest token) or more", p.temperature);
  require(p.dynatemp_range >= 0 && std::isfinite(p.dynatemp_range), "dynatemp_range",
          "0 (off) or more", p.dynatemp_range);
  require(p.dynatemp_exponent >= 0 && std::isfinite(p.dynatemp_exponent), "dynatemp_exponent",
          "0 or more", p.dynatemp_exponent);
  require(p.top_k >= 0, "top_k", "0 (off) or more", p.top_k);
  require(p.top_p > 0 && p.top_p <= 1, "top_p", "above 0, up to 1 (off)", p.top_p);
  require(p.min_p >= 0 && p.min_p <= 1, "min_p", "0 (off) to 1", p.min_p);
  require(std::isfinite(p.top_n_sigma), "top_n_sigma", "a finite number, -1 being off",
          p.top_n_sigma);
  require(p.tfs_z > 0 && p.tfs_z <= 1, "tfs_z", "above 0, up to 1 (off)", p.tfs_z);
  require(p.typical_p > 0 && p.typical_p <= 1, "typical_p", "above 0, up to 1 (off)", p.typical_p);
  require(p.xtc_probability >= 0 && p.xtc_probability <= 1, "xtc_probability", "0 (off) to 1",
          p.xtc_probability);
  require(p.xtc_threshold >= 0 && p.xtc_threshold <= 1, "xtc_threshold",
          "0 to 1, above 0.5 being off", p.xtc_threshold);
}

void check_penalties(const SamplerParams& p) {
  require(p.repeat_penalty > 0 && std::isfinite(p.repeat_penalty), "repeat_penalty",
          "above 0, 1 being off", p.repeat_penalty);
  require(p.repeat_last_n >= -1, "repeat_last_n", "-1 (all), 0 (off) or more", p.repeat_last_n);
  require(std::isfinite(p.presence_penalty), "presence_penalty", "a finite number",
          p.presence_penalty);
  require(std::isfinite(p.frequency_penalty), "frequency_penalty", "a finite number",
          p.frequency_penalty);
  require(p.dry_multiplier >= 0 && std::isfinite(p.dry_multiplier), "dry_multiplier",
          "0 (off) or more", p.dry_multiplier);
  require(p.dry_base >= 1 && std::isfinite(p.dry_base), "dry_base", "1 or more", p.dry_base);
  require(p.dry_allowed_length >= 0, "dry_allowed_length", "0 or more", p.dry_allowed_length);
  require(p.dry_penalty_last_n >= -1, "dry_penalty_last_n", "-1 (all), 0 (off) or more",
          p.dry_penalty_last_n);
  for (const auto& [token, bias] : p.logit_bias) {
    require(token >= 0, "logit_bias", "tokens from 0", token);
    require(bias < std::numeric_limits<float>::infinity(), "logit_bias",
            "finite numbers, or -inf to forbid a token", bias);
  }
}

void check_strategies(const SamplerParams& p) {
  require(p.mirostat >= 0 && p.mirostat <= 2, "mirostat", "0 (off), 1 or 2", p.mirostat);
  require(p.mirostat_tau >= 0 && std::isfinite(p.mirostat_tau), "mirostat_tau", "0 bits or more",
          p.mirostat_tau);
  require(p.mirostat_eta >= 0 && std::isfinite(p.mirostat_eta), "mirostat_eta", "0 or more",
          p.mirostat_eta);
  require(p.fsd >= 0 && p.fsd <= 2, "fsd", "0 (off), 1 or 2 (randomized)", p.fsd);
  require(p.fsd == 0 || p.mirostat == 0, "fsd", "0 beside mirostat, for only one can choose",
          p.fsd);
  require(p.fsd_alpha >= 0 && p.fsd_alpha <= 1, "fsd_alpha", "0 to 1", p.fsd_alpha);
  require(p.fsd_k >= 1, "fsd_k", "1 or more", p.fsd_k);
  require(p.fsd_n >= 1 && p.fsd_n <= 64, "fsd_n", "1 to 64", p.fsd_n);
  require(p.fsd_beta >= 0 && p.fsd_beta <= 1, "fsd_beta", "0 to 1", p.fsd_beta);
  require(p.fsd_random_n >= 0, "fsd_random_n", "0 or more", p.fsd_random_n);
  require(p.fsd_random_p >= 0 && p.fsd_random_p <= 1, "fsd_random_p", "0 to 1", p.fsd_random_p);
}

}  // namespace

bool SamplerParams::penalizes() const {
  return repeat_last_n != 0 &&
         (repeat_penalty != 1.0f || presence_penalty != 0 || frequency_penalty != 0);
}

bool SamplerParams::is_plain() const {
  return fsd == 0 && mirostat == 0 && top_n_sigma <= 0 && tfs_z == 1 && typical_p == 1 &&
         (xtc_probability == 0 || xtc_threshold > 0.5f) && dynatemp_range == 0;
}

int64_t SamplerParams::n_looked_back() const {
  int64_t most = 0;
  for (const auto& [uses, n] : {std::pair<bool, int64_t>{penalizes(), repeat_last_n},
                                {uses_dry(), dry_penalty_last_n},
                                {fsd > 0, -1},
                                {banned_strings != nullptr, -1}})
    if (uses) most = n < 0 || most < 0 ? -1 : std::max(most, n);
  return most;
}

SamplerParams checked(SamplerParams p) {
  check_cuts(p);
  check_penalties(p);
  check_strategies(p);
  require(p.n_logprobs >= 0, "n_logprobs", "0 (off) or more", p.n_logprobs);
  return p;
}

}  // namespace pyflow
