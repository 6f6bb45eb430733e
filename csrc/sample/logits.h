// One row of logits, with a few tokens changed and some forbidden, read in blocks. The row itself is
// never written or copied: what biases and penalties change is a short list beside it, and a grammar
// gives a bit for each token.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/portable_math.h"

namespace pyflow {

inline constexpr float kNever = -std::numeric_limits<float>::infinity();

struct Candidate {
  float logit;
  int32_t token;
  // Likelier first; among equals the lowest token.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
  }
};

// Tokens that may be drawn: bit t % 32 of word t / 32 is set for token t. Words beyond the last one
// are 0. Empty: all may.
using TokenMask = std::span<const uint32_t>;

class Logits {
 public:
  // Selection looks into a block only where the block's maximum says so. With 128, a vocabulary of
  // 49,152 has 384 blocks: the best 40 tokens are found by reading about 40 of them a second time.
  static constexpr int64_t kBlock = 128;

  // `changed` holds new values, ascending in token, no token twice. Throws Error where a logit is
  // NaN or +inf, where none is above -inf, and where a changed token is outside the row.
  Logits(std::span<const float> row, std::vector<Candidate> changed, TokenMask mask = {});
  // Of a part of a row, in which no token may be possible: max() is -inf then. None where a logit is
  // NaN or +inf.
  static std::optional<Logits> part(std::span<const float> row, std::vector<Candidate> changed,
                                    TokenMask mask);

  int64_t size() const { return static_cast<int64_t>(row_.size()); }
  // Nothing is changed or forbidden.
  bool is_as_given() const { return changed_.empty() && mask_.empty(); }
  float max() const { return max_; }
  // Of a token of the row; -inf where it is forbidden.
  float at(int32_t token) const;

  // The likeliest token.
  int32_t argmax() const;
  // The k likeliest that are possible at all, in order.
  std::vector<Candidate> top(int64_t k) const;
  // All tokens with logits of at least `least` and above -inf, by token.
  std::vector<Candidate> at_least(float least) const;
  // The sum of exp(logit - max()), added in token order.
  double sum_exp() const;

  // exp(logit - max) in units of 2^-40. Whole numbers add up alike in any order, so which tokens
  // top-p keeps depends on no algorithm; 2^24 tokens cannot overflow.
  static uint64_t weight(float logit, float max) {
    return static_cast<uint64_t>(portable::exp(static_cast<double>(logit) - max) * 0x1p40);
  }
  uint64_t total_weight() const;

  // Calls f(first token, pointer, count) in order for every block whose number passes wants(block).
  template <class Wants, class F>
  void for_blocks(Wants&& wants, F&& f) const {
    float patched[kBlock];
    auto change = changed_.begin();
    for (int64_t begin = 0, b = 0; begin < size(); begin += kBlock, ++b) {
      const int64_t n = std::min(kBlock, size() - begin);
      const auto last = std::find_if(change, changed_.end(),
                                     [&](const Candidate& c) { return c.token >= begin + n; });
      const auto first = std::exchange(change, last);
      if (!wants(b)) continue;
      const float* block = row_.data() + begin;
      const bool masked = !allows_all(begin, n);
      if (first != last || masked) {
        std::copy(block, block + n, patched);
        for (auto c = first; c != last; ++c) patched[c->token - begin] = c->logit;
        for (int64_t i = 0; masked && i < n; ++i)
          if (!allows(begin + i)) patched[i] = kNever;
        block = patched;
      }
      f(begin, block, n);
    }
  }
  float block_max(int64_t block) const { return block_max_[static_cast<size_t>(block)]; }

 private:
  Logits() = default;
  // Finds the maxima of blocks. Returns the first token whose logit is NaN or +inf; -1: none is.
  int64_t survey();

  bool allows(int64_t token) const {
    const auto word = static_cast<size_t>(token / 32);
    return word < mask_.size() && (mask_[word] >> (token % 32) & 1);
  }
  bool allows_all(int64_t begin, int64_t n) const {
    if (mask_.empty()) return true;
    static_assert(kBlock % 32 == 0, "a block is whole words");
    for (int64_t i = 0; i < n; i += 32) {
      const auto word = static_cast<size_t>((begin + i) / 32);
      const uint32_t wanted = n - i >= 32 ? ~uint32_t{0} : (uint32_t{1} << (n - i)) - 1;
      if (word >= mask_.size() || (mask_[word] & wanted) != wanted) return false;
    }
    return true;
  }

  std::span<const float> row_;
  std::vector<Candidate> changed_;
  TokenMask mask_;
  std::vector<float> block_max_;
  float max_ = kNever;
};

}  // namespace pyflow
