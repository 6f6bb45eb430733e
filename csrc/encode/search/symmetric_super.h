// Super-blocks of values around zero: x ~ d * scale * v, with signed integers as scales.
//
// Each sub-block first gets its own best scale; then the f16 d is chosen that rounds these with the
// least error. Then, three times: every sub-block tries the neighbours of its integer, and d moves
// to the least squares solution of the whole super-block.
#pragma once

#include "encode/search/symmetric.h"
#include "encode/search/units.h"

namespace pyflow::quant {

// `Subs` sub-blocks of N weights, scales Low .. High. Least, Most, Steps: see ScaleSearch.
template <class Grid, int N, int Subs, int Low, int High, int Least, int Most, int Steps>
struct SymmetricSuperBlocks {
  static constexpr int kBlocks = kLanes / Subs;  // at once
  static constexpr int kLevels = Grid::kLevels;
  static constexpr bool kEven = Grid::kEven;

  template <class S>
  static void run(const SearchInput& input, Fields* out) {
    using F = typename S::F;
    using Search = ScaleSearch<S, Grid, N, Least, Most, Steps>;
    using Scales = Integers<Low, High>;
    const Lanes<S, N> in(input, Subs);
    const F wanted = Search::best(in);
    F d = UnitSearch<S, Low, High, Subs>::best(in, wanted, Search::sums(in, wanted).curvature);
    F scale = Scales::template nearest<S>(S::mul(wanted, inverse<S>(d)));
    F least = Search::error(in, S::mul(d, scale));
    for (int turn = 0; turn < 3; ++turn) {
      const F middle = scale;
      for (int i = -1; i <= 1; i += 2) {
        const F step = S::set1(static_cast<float>(i));
        const F other = Scales::template nearest<S>(S::add(middle, step));
        const F e = Search::error(in, S::mul(d, other));
        scale = S::where_less(e, least, other, scale);
        least = S::where_less(e, least, e, least);
      }
      const F other = in.as_halves(moved<S>(d, scale, Search::sums(in, S::mul(d, scale))));
      const F e = Search::error(in, S::mul(other, scale)), better = improves<S, Subs>(e, least);
      d = S::where_less(S::zero(), better, other, d);
      least = S::where_less(S::zero(), better, e, least);
    }
    uint16_t halves[kLanes];
    in.to_halves(d, halves);
    const PerLane<S, Subs> scales(Scales::template index<S>(scale));
    for (int l = 0; l < kLanes; ++l) {
      out[l / Subs].d = halves[l];
      out[l / Subs].scales[l % Subs] = static_cast<uint8_t>(scales.v[l]);
    }
    Search::store(in, S::mul(d, scale), Subs, out);
  }

 private:
  // The best d for the same scales and values, not yet rounded.
  template <class S, class Sums>
  static typename S::F moved(typename S::F d, typename S::F scale, const Sums& t) {
    const PerLane<S, Subs> slope(S::mul(scale, t.slope));
    const PerLane<S, Subs> curvature(S::mul(S::mul(scale, scale), t.curvature));
    PerLane<S, Subs> to(d);
    for (int g = 0; g < kLanes; g += Subs)
      if (const float c = curvature.sum(g); c > 0.0f) to.fill(g, to.v[g] + slope.sum(g) / c);
    return to.load();
  }
};

}  // namespace pyflow::quant
