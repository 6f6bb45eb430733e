// Search for formats whose values are a scale times a grid around zero: x ~ d * v.
//
// For given v, least squares gives the best scale, d = sum(w x v) / sum(w v^2); for a given scale
// the nearest v are the best. The scales that are tried map the weight of largest magnitude to one
// target after the other; each is followed by a step of least squares, and the best one by three
// more rounds of both.
//
// For example, weights {1, 2, -4.5, 3}, grid -4 .. 3. The target -4 gives d = 1.125, v = {1, 2, -4,
// 3} and the error 0.22; least squares gives d = 32 / 30 = 1.067, which leaves 0.12.
#pragma once

#include "encode/search/lanes.h"

namespace pyflow::quant {

// `Steps` targets, from Least % to Most % of each end of the grid. Twice as many take 0.1 % off the
// error of Q4_0 and Q6_K (normal and heavy-tailed weights, with and without importance).
template <class S, class Grid, int N, int Least, int Most, int Steps>
struct ScaleSearch {
  using F = typename S::F;
  // What a scale leaves with residuals r: error = sum w r^2; slope = sum w r v and curvature = sum
  // w v^2 in d.
  struct Sums {
    F error, slope, curvature;
  };

  static inline Sums sums(const Lanes<S, N>& in, F d) {
    const F inverse_d = inverse<S>(d);
    Sums t = {S::zero(), S::zero(), S::zero()};
    for (int k = 0; k < N; ++k) {
      const F v = Grid::template nearest<S>(S::mul(in.x[k], inverse_d));
      const F r = S::sub(in.x[k], S::mul(d, v)), wr = S::mul(in.w[k], r);
      t.error = S::add(t.error, S::mul(wr, r));
      t.slope = S::add(t.slope, S::mul(wr, v));
      t.curvature = S::add(t.curvature, S::mul(S::mul(in.w[k], v), v));
    }
    return t;
  }
  static inline F error(const Lanes<S, N>& in, F d) {
    const F inverse_d = inverse<S>(d);
    F e = S::zero();
    for (int k = 0; k < N; ++k) {
      const F v = Grid::template nearest<S>(S::mul(in.x[k], inverse_d));
      const F r = S::sub(in.x[k], S::mul(d, v));
      e = S::add(e, S::mul(S::mul(in.w[k], r), r));
    }
    return e;
  }
  // The step of least squares in d for the same v; 0 if all v are 0.
  static inline F step(const Sums& t) { return S::mul(t.slope, inverse<S>(t.curvature)); }

  static F best(const Lanes<S, N>& in) {
    F extreme = S::zero();
    for (int k = 0; k < N; ++k)
      extreme = S::where_less(S::abs(extreme), S::abs(in.x[k]), in.x[k], extreme);
    // Exact if all weights are equal.
    F best = S::mul(extreme, S::set1(1.0f / static_cast<float>(Grid::kExact)));
    F least = error(in, best);
    const float ends[2] = {Grid::kLow, Grid::kHigh};
    for (const float end : ends)
      for (int i = 0; i < Steps; ++i) {
        const float target = end * (Least + (Most - Least) * (i / (Steps - 1.0f))) / 100.0f;
        const F d = S::mul(extreme, S::set1(1.0f / target));
        const Sums t = sums(in, d);
        const F change = step(t);
        const F e = S::max(S::sub(t.error, S::mul(change, t.slope)), S::zero());
        best = S::where_less(e, least, S::add(d, change), best);
        least = S::where_less(e, least, e, least);
      }
    for (int turn = 0; turn < 3; ++turn) best = S::add(best, step(sums(in, best)));
    return best;
  }

  static void store(const Lanes<S, N>& in, F d, int shared, Fields* out) {
    const F inverse_d = inverse<S>(d);
    F index[N];
    for (int k = 0; k < N; ++k)
      index[k] = Grid::template index<S>(Grid::template nearest<S>(S::mul(in.x[k], inverse_d)));
    Lanes<S, N>::store_indices(index, shared, out);
  }
};

// Blocks of N weights with an f16 scale. Its two neighbours are tried too.
template <class Grid, int N, int Least, int Most, int Steps>
struct SymmetricBlocks {
  static constexpr int kBlocks = kLanes;  // at once
  static constexpr int kLevels = Grid::kLevels;
  static constexpr bool kEven = Grid::kEven;

  template <class S>
  static void run(const SearchInput& input, Fields* out) {
    using F = typename S::F;
    using Search = ScaleSearch<S, Grid, N, Least, Most, Steps>;
    const Lanes<S, N> in(input, 1);
    uint16_t nearest[kLanes], halves[kLanes];
    in.to_halves(Search::best(in), nearest);
    F d = in.from_halves(nearest), least = Search::error(in, d);
    for (int step = -1; step <= 1; step += 2) {
      in.next_halves(nearest, step, halves);
      const F other = in.from_halves(halves), e = Search::error(in, other);
      d = S::where_less(e, least, other, d);
      least = S::where_less(e, least, e, least);
    }
    in.to_halves(d, halves);
    for (int l = 0; l < kLanes; ++l) out[l].d = halves[l];
    Search::store(in, d, 1, out);
  }
};

}  // namespace pyflow::quant
