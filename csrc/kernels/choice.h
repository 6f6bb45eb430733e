// Which experts a row takes, and with what weights, in double without fused products: devices have the
// same (device/kernels/choice.dev).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

#include "core/portable_math.h"

namespace pyflow {

struct Choice {
  int64_t n_experts, top_k;
  bool normalize;
  float scale;
  bool sigmoid = false;  // of each logit, in place of the softmax of all
  const float* bias =
      nullptr;  // added to what experts are chosen by, not to their weights; or null
  // Experts of some groups alone, all of one size, are chosen: of those whose best expert, or whose
  // best two together, have the most.
  int64_t n_groups = 1, n_groups_used = 1;
  bool group_by_two = false;

  // Whether the largest logits are chosen.
  bool by_logits() const { return !bias && n_groups == 1; }
  // Whether devices have it.
  bool plain() const { return by_logits() && !sigmoid; }
};

// e^x for x <= 0; a NaN stays a NaN.
inline double likelihood(double x) { return x == x ? portable::exp(x) : x; }

inline float sigmoid(float x) {
  const double e = likelihood(-std::abs(static_cast<double>(x)));
  return static_cast<float>((x < 0 ? e : 1.0) / (1.0 + e));
}

inline float key_of(float x) { return x == x ? x : -std::numeric_limits<float>::infinity(); }

// Weights of all experts before the scale and the sum of those that are chosen.
struct Likelihoods {
  const Choice& of;
  const float* logits;
  double top = 0;

  double at(int64_t e) const {
    return of.sigmoid ? static_cast<double>(sigmoid(logits[e])) : likelihood(logits[e] - top);
  }
  double sum() const {
    double sum = 0;
    for (int64_t e = 0; e < of.n_experts; ++e) sum += at(e);
    return sum;
  }
};

// What a group is chosen by.
inline float group_key(const Choice& of, const float* keys, int64_t group) {
  const int64_t n = of.n_experts / of.n_groups;
  float best = -std::numeric_limits<float>::infinity(), second = best;
  for (const float *key = keys + group * n, *end = key + n; key < end; ++key) {
    second = std::max(second, std::min(best, *key));
    best = std::max(best, *key);
  }
  return of.group_by_two && n > 1 ? best + second : best;
}

// Of n keys the largest `count`, of equal ones the first: calls take(i) in this order.
template <class KeyAt, class Take>
void take_largest(int64_t n, int64_t count, KeyAt&& key, Take&& take) {
  for (int64_t i = 0, last = -1; i < count; ++i) {
    int64_t best = -1;
    for (int64_t e = 0; e < n; ++e) {
      const bool left = last < 0 || key(e) < key(last) || (key(e) == key(last) && e > last);
      if (left && (best < 0 || key(e) > key(best))) best = e;
    }
    last = best;
    take(best);
  }
}

// Writes what experts are chosen by; -inf for NaNs, which rank last, and for those of other groups.
inline void rank_experts(const Choice& of, const float* logits, float* keys) {
  const bool by_value = of.bias || of.group_by_two;
  Likelihoods likely = {of, logits};
  for (int64_t e = 0; e < of.n_experts; ++e) {
    const float key = key_of(logits[e]);
    likely.top = e == 0 || key > likely.top ? static_cast<double>(key) : likely.top;
  }
  const double sum = by_value && !of.sigmoid ? likely.sum() : 1.0;
  for (int64_t e = 0; e < of.n_experts; ++e) {
    const float value = by_value ? static_cast<float>(likely.at(e) / sum) : logits[e];
    keys[e] = key_of(of.bias ? value + of.bias[e] : value);
  }
  if (of.n_groups == 1) return;
  int64_t last = 0;
  take_largest(
      of.n_groups, of.n_groups_used, [&](int64_t g) { return group_key(of, keys, g); },
      [&](int64_t g) { last = g; });
  const float least = group_key(of, keys, last);
  const int64_t n = of.n_experts / of.n_groups;
  for (int64_t g = 0; g < of.n_groups; ++g) {
    const float key = group_key(of, keys, g);
    if (key < least || (key == least && g > last))
      std::fill_n(keys + g * n, n, -std::numeric_limits<float>::infinity());
  }
}

// The experts of a row, from the likeliest on, of equal ones the first, and their weights. keys:
// n_experts floats to work in.
inline void choose(const Choice& of, const float* logits, float* keys, float* p, int32_t* chosen) {
  if (!of.by_logits()) rank_experts(of, logits, keys);
  const float* by = of.by_logits() ? logits : keys;
  int32_t* next = chosen;
  take_largest(
      of.n_experts, of.top_k, [by](int64_t e) { return key_of(by[e]); },
      [&](int64_t e) { *next++ = static_cast<int32_t>(e); });
  Likelihoods likely = {of, logits, logits[chosen[0]]};
  for (int64_t e = 0; e < of.n_experts && !of.by_logits(); ++e)
    if (logits[e] > likely.top) likely.top = logits[e];
  double sum = 1.0;
  if (of.normalize) {
    sum = of.sigmoid ? 1e-20 : 0.0;  // sigmoids of all may be zeros
    for (int64_t i = 0; i < of.top_k; ++i) sum += likely.at(chosen[i]);
  } else if (!of.sigmoid) {
    sum = likely.sum();
  }
  for (int64_t i = 0; i < of.top_k; ++i)
    p[i] = static_cast<float>(likely.at(chosen[i]) / sum * static_cast<double>(of.scale));
}

// A slot is the place of a row among the rows of an expert that it chose, expert after expert.
struct Slots {
  const int32_t* chosen;       // n_rows x top_k
  int32_t* slot;               // of each of these
  int32_t* row;                // of each slot
  int32_t* first;              // slot of each expert; the end
  int32_t *active, *n_active;  // experts with slots
};

// Assigns slots: by expert, then in the order of rows.
inline void assign_slots(const Choice& of, int64_t n_rows, const Slots& b) {
  std::fill_n(b.first, of.n_experts + 1, 0);
  for (int64_t i = 0; i < n_rows * of.top_k; ++i) ++b.first[b.chosen[i] + 1];
  *b.n_active = 0;
  for (int32_t e = 0; e < of.n_experts; ++e) {
    if (b.first[e + 1]) b.active[(*b.n_active)++] = e;
    b.first[e + 1] += b.first[e];
  }
  // first[e] moves to the end of e, which is where first[e + 1] was.
  for (int64_t i = 0; i < n_rows * of.top_k; ++i) {
    b.slot[i] = b.first[b.chosen[i]]++;
    b.row[b.slot[i]] = static_cast<int32_t>(i / of.top_k);
  }
  std::copy_backward(b.first, b.first + of.n_experts, b.first + of.n_experts + 1);
  b.first[0] = 0;
}

}  // namespace pyflow
