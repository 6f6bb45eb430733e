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
};

// e^x for x <= 0; a NaN stays a NaN.
inline double likelihood(double x) { return x == x ? portable::exp(x) : x; }

inline float sigmoid(float x) {
  const double e = likelihood(-std::abs(static_cast<double>(x)));
  return static_cast<float>((x < 0 ? e : 1.0) / (1.0 + e));
}

// The likeliest experts of a row, of equal ones the first, and their weights.
inline void choose(const Choice& of, const float* logits, float* p, int32_t* chosen) {
  // NaNs rank last; they make every p a NaN.
  const auto key = [&](int64_t e) {
    return logits[e] == logits[e] ? logits[e] : -std::numeric_limits<float>::infinity();
  };
  for (int64_t i = 0, last = -1; i < of.top_k; ++i) {
    int64_t best = -1;
    for (int64_t e = 0; e < of.n_experts; ++e) {
      const bool left = last < 0 || key(e) < key(last) || (key(e) == key(last) && e > last);
      if (left && (best < 0 || key(e) > key(best))) best = e;
    }
    last = best;
    chosen[i] = static_cast<int32_t>(best);
  }
  const double top = logits[chosen[0]];
  const auto weight = [&](int64_t e) { return likelihood(logits[e] - top); };
  double sum = 0;
  if (of.normalize)
    for (int64_t i = 0; i < of.top_k; ++i) sum += weight(chosen[i]);
  else
    for (int64_t e = 0; e < of.n_experts; ++e) sum += weight(e);
  for (int64_t i = 0; i < of.top_k; ++i)
    p[i] = static_cast<float>(weight(chosen[i]) / sum * static_cast<double>(of.scale));
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
