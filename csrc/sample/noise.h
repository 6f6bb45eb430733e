// Gumbel noise as a function of (seed, stream, position, token).
//
// The next token is argmax over the candidates of (logit / temperature + noise), which draws from
// their softmax (the Gumbel-max trick). Since the noise of a token at a position is a fixed number,
// verifying a draft later, in any batch or order, repeats the draw of plain decoding.
//
// Drawing drafts, verifying them and the coins of stages need numbers independent of those of
// sampling: they use other counters of the same generator.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>

#include "core/portable_math.h"

namespace pyflow {

// Philox4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel random numbers, as easy as 1, 2, 3. SC 2011).
inline std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> c, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = uint64_t{0xD2511F53} * c[0], b = uint64_t{0xCD9E8D57} * c[2];
    c = {static_cast<uint32_t>(b >> 32) ^ c[1] ^ key[0], static_cast<uint32_t>(b),
         static_cast<uint32_t>(a >> 32) ^ c[3] ^ key[1], static_cast<uint32_t>(a)};
    key[0] += 0x9E3779B9;
    key[1] += 0xBB67AE85;
  }
  return c;
}

// Who uses the numbers. Pairs of tokens take 30 bits of a counter, the purpose the other two.
enum class Purpose : uint32_t { Sample = 0, Draft = 1, Verify = 2, Stage = 3 };

class Noise {
 public:
  Noise(uint64_t seed, uint32_t stream, int64_t position, Purpose purpose = Purpose::Sample)
      : key_{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)},
        purpose_(static_cast<uint32_t>(purpose) << 30),
        stream_(stream),
        position_(static_cast<uint64_t>(position)) {}

  // 64 random bits for token 2 * pair and for token 2 * pair + 1.
  std::array<uint64_t, 2> bits(uint32_t pair) const {
    const auto r = philox4x32({pair | purpose_, stream_, static_cast<uint32_t>(position_),
                               static_cast<uint32_t>(position_ >> 32)},
                              key_);
    return {uint64_t{r[1]} << 32 | r[0], uint64_t{r[3]} << 32 | r[2]};
  }

  double gumbel(int32_t token) const {
    return from_bits(bits(static_cast<uint32_t>(token) / 2)[token & 1]);
  }

  // (upper 52 bits + 1/2) / 2^52: never 0 or 1, and exact in a double.
  static double uniform(uint64_t r) { return (static_cast<double>(r >> 12) + 0.5) * 0x1p-52; }

  // -log(-log u)
  static double from_bits(uint64_t r) { return -portable::log(-portable::log(uniform(r))); }

  // An upper bound of from_bits(r) without logarithms: after c leading ones 1 - u > 2^-(c+1), and
  // -log u >= 1 - u, hence the noise is below (c+1) ln2. The slack covers rounding.
  static double bound(uint64_t r) {
    return std::min(std::countl_one(r) + 1, 53) * portable::kLn2 + 1e-9;
  }
  static constexpr double kMost = 53 * portable::kLn2 + 1e-9;

 private:
  std::array<uint32_t, 2> key_;
  uint32_t purpose_;
  uint32_t stream_;
  uint64_t position_;
};

}  // namespace pyflow
