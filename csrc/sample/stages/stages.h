// The stages that choose which tokens take part in a draw, a file each, and their chain. All work on
// the softmax of what the stages before them left, at temperature 1: the temperature comes last.
//
// Of equal logits the lower token counts as the likelier one. Each stage keeps at least one token.
#pragma once

#include <cstdint>
#include <span>

#include "sample/noise.h"
#include "sample/params.h"
#include "sample/stages/weights.h"
#include "sample/text_view.h"

namespace pyflow::stages {

// Top-k, top-p and min-p without the stages between them: all cut at a likelihood, so the shortest
// prefix decides, and most of a large vocabulary need not be gathered.
Kept likeliest(const Logits& logits, const SamplerParams& params);

// Top-n-sigma (Tang et al., 2024): the least logit to keep is max - n sigma, sigma being the standard
// deviation of all possible tokens' logits.
double least_by_sigma(const Logits& logits, double n);

// Tail-free sampling (Bricken, 2019): with p sorted, the absolute second differences say where the
// tail begins. Cuts at the first token, beyond the likeliest, where their share so far exceeds z.
void tail_free(Kept& kept, double z);

// Locally typical sampling (Meister et al., 2023): the smallest set of mass p of the tokens whose
// surprise -ln p differs least from the entropy.
void typical(Kept& kept, double p);

// Exclude top choices: of the tokens of at least probability `threshold`, only the least likely one
// stays. Whether that happens at a position is up to the sampler.
void exclude_top(Kept& kept, double threshold);

// Dynamic temperature: from temperature - range, not below 0, to temperature + range, by the
// entropy over its maximum for so many tokens, to the power of the exponent.
double dynamic_temperature(const Kept& kept, const SamplerParams& params);

// What all stages in llama.cpp's order leave; `coins` says whether XTC happens.
Kept chain(const Logits& logits, const SamplerParams& params, const Noise& coins);

// Mirostat (Basu et al., 2021). mu: the most surprise that a token may have, in bits. Version 1 takes
// the k likeliest tokens, k by the exponent of Zipf's law that the 100 likeliest follow; version 2
// all tokens of at most mu. The softmax is that of all tokens at the temperature.
// log_sum: ln of the sum of its exponentials, relative to the likeliest token's.
Kept mirostat(const Logits& logits, int version, double temperature, double mu, double log_sum);
double log_sum(const Logits& logits, double temperature);
// -log2 of a token's probability by that softmax; infinite for a token that is impossible.
double surprise(const Logits& logits, int32_t token, double temperature, double log_sum);

// Frustratingly simple decoding (Yang et al., 2023): the k likeliest tokens, the one of the greatest
// (1 - alpha) p - alpha q first, q being their probability by smoothed n-grams of the text.
Kept fsd(const Logits& logits, const TextView& text, const SamplerParams& params);
// Whether the randomized kind samples in place of that.
bool fsd_samples(const SamplerParams& params, int64_t n_drawn, const Noise& coins);

// A coin of a stage at a position: true with this probability.
enum class Coin : uint32_t { Xtc = 0, Fsd = 1 };
inline bool toss(const Noise& coins, Coin coin, double probability) {
  return Noise::uniform(coins.bits(static_cast<uint32_t>(coin))[0]) < probability;
}

}  // namespace pyflow::stages
