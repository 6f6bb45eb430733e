// Super-blocks: sub-blocks whose scales (and minimums) are integers times an f16, the unit. What
// the searches for both kinds share.
#pragma once

#include "encode/search/lanes.h"

namespace pyflow::quant {

// A number per lane, with sums over a super-block, `Subs` consecutive lanes.
template <class S, int Subs>
struct PerLane {
  using F = typename S::F;
  alignas(64) float v[kLanes];

  PerLane() = default;
  explicit PerLane(F f) { S::store(v, f); }
  F load() const { return S::load(v); }
  void fill(int first, float x) {
    for (int l = first; l < first + Subs; ++l) v[l] = x;
  }
  float sum(int first) const {
    float total = 0.0f;
    for (int l = first; l < first + Subs; ++l) total += v[l];
    return total;
  }
};

// 1 in super-blocks whose summed error is less after than before, else 0.
template <class S, int Subs>
inline typename S::F improves(typename S::F after, typename S::F before) {
  const PerLane<S, Subs> a(after), b(before);
  PerLane<S, Subs> better;
  for (int g = 0; g < kLanes; g += Subs) better.fill(g, a.sum(g) < b.sum(g) ? 1.0f : 0.0f);
  return better.load();
}

// The unit whose multiples Low .. High come closest to the numbers that the sub-blocks want,
// squared distances weighed by how fast their errors rise. The largest wanted number is mapped,
// sixteen units at a time, to the powers of two, which can be exact, and to kTries * 16 targets
// from 60 % of each end of the range to slightly beyond it; each trial is followed by a step of
// least squares.
//
// For example, wanted {1.0, 0.52, 0.26}, High = 3: mapping 1.0 to 3 gives the unit 0.333 and
// multiples {3, 2, 1}, errors {0, 0.147, 0.073}; to 2 gives 0.5 and {2, 1, 1}, errors {0, 0.02,
// 0.24}.
template <class S, int Low, int High, int Subs>
struct UnitSearch {
  using F = typename S::F;
  static constexpr int kTries = 4;

  // For every super-block, in its lanes; `in` has the powers of two of its lanes.
  template <class Weights>
  static F best(const Weights& in, F wanted, F weight) {
    const PerLane<S, Subs> of(wanted), by(weight);
    PerLane<S, Subs> unit;
    for (int g = 0; g < kLanes; g += Subs)
      unit.fill(g, best_of(of.v + g, by.v + g, in.up[g], in.down[g]));
    return unit.load();
  }

 private:
  struct Sums {
    F error, slope, curvature;
  };

  static float best_of(const float* wanted, const float* weight, float up, float down) {
    float extreme = 0.0f, best = 0.0f, least = __builtin_inff();
    for (int j = 0; j < Subs; ++j)
      if (size(wanted[j]) > size(extreme)) extreme = wanted[j];
    if (extreme == 0.0f) return 0.0f;
    const auto attempt = [&](float(&units)[kLanes]) {
      const F first = as_halves(S::load(units), up, down);
      const Sums t = sums(wanted, weight, first);
      const F step = S::mul(t.slope, inverse<S>(t.curvature));
      const F second = as_halves(S::add(first, step), up, down);
      alignas(64) float error[kLanes];
      S::store(error, sums(wanted, weight, second).error);
      S::store(units, second);
      for (int l = 0; l < kLanes; ++l)
        if (error[l] < least) {
          least = error[l];
          best = units[l];
        }
    };
    alignas(64) float units[kLanes];
    for (int l = 0; l < kLanes; ++l)
      units[l] = extreme / static_cast<float>((1 << l) < High ? 1 << l : High);
    attempt(units);
    const float ends[2] = {High, Low};
    for (const float end : ends)
      for (int i = 0; i < kTries && end != 0.0f; ++i) {
        for (int l = 0; l < kLanes; ++l) {
          const float part = static_cast<float>(i * kLanes + l) / (kTries * kLanes - 1);
          units[l] = extreme / (end * (0.6f + 0.42f * part));
        }
        attempt(units);
      }
    return best;
  }
  static Sums sums(const float* wanted, const float* weight, F unit) {
    const F inverse_unit = inverse<S>(unit);
    Sums t = {S::zero(), S::zero(), S::zero()};
    for (int j = 0; j < Subs; ++j) {
      const F x = S::set1(wanted[j]), w = S::set1(weight[j]);
      const F q = Integers<Low, High>::template nearest<S>(S::mul(x, inverse_unit));
      const F r = S::sub(x, S::mul(unit, q)), wr = S::mul(w, r);
      t.error = S::add(t.error, S::mul(wr, r));
      t.slope = S::add(t.slope, S::mul(wr, q));
      t.curvature = S::add(t.curvature, S::mul(S::mul(w, q), q));
    }
    return t;
  }
  static float size(float x) { return x < 0.0f ? -x : x; }
  // Rounded to f16 in the weights' own units, but not to 0.
  static F as_halves(F d, float up, float down) {
    const F own = S::mul(d, S::set1(down));
    const F size = S::min(S::max(S::abs(own), S::set1(0x1p-24f)), S::set1(65504.0f));
    uint16_t h[kLanes];
    S::store_f16(h, S::where_less(own, S::zero(), S::sub(S::zero(), size), size));
    return S::mul(S::load_f16(h), S::set1(up));
  }
};

}  // namespace pyflow::quant
