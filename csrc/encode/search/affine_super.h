// Super-blocks with minimums: x ~ d * scale * q - dmin * minimum, with integers from 0 as scales
// and minimums.
//
// Each sub-block first gets its own best line. Then the two f16 are chosen that round scales and
// minimums with the least error, dmin after d and knowing its rounding. Then, three times: every
// sub-block tries the neighbours of its two integers, and d and dmin move to the least squares
// solution of the whole super-block.
#pragma once

#include "encode/search/affine.h"
#include "encode/search/units.h"

namespace pyflow::quant {

// `Subs` sub-blocks of N weights, q up to Max, scales and minimums up to High.
//
// With a positive dmin values begin at or below zero. A super-block whose sub-blocks are farther
// above zero than below is encoded upside down, with both f16 negative.
template <int Max, int N, int Subs, int High>
struct AffineSuperBlocks {
  static constexpr int kBlocks = kLanes / Subs;  // at once
  static constexpr int kLevels = Max + 1;
  static constexpr bool kEven = true;

  template <class S>
  static void run(const SearchInput& input, Fields* out) {
    using F = typename S::F;
    Lanes<S, N> in(input, Subs);
    const F sign = turn_over(in);
    const LineSearch<S, Max, N, true> search(in);
    State<S> state = start(search);
    for (int turn = 0; turn < 3; ++turn) {
      try_neighbours(search, state);
      move_units(search, state);
    }
    uint16_t d[kLanes], dmin[kLanes];
    in.to_halves(S::mul(state.d, sign), d);
    in.to_halves(S::mul(state.dmin, sign), dmin);
    const PerLane<S, Subs> scales(state.scale), minimums(state.minimum);
    for (int l = 0; l < kLanes; ++l) {
      Fields& block = out[l / Subs];
      block.d = d[l];
      block.m = dmin[l];
      block.scales[l % Subs] = static_cast<uint8_t>(scales.v[l]);
      block.minimums[l % Subs] = static_cast<uint8_t>(minimums.v[l]);
    }
    search.store(state.line(), Subs, out);
  }

 private:
  using Integer = Integers<0, High>;
  template <class S>
  using Search = LineSearch<S, Max, N, true>;
  template <class S>
  using Row = PerLane<S, Subs>;

  template <class S>
  struct State {
    typename S::F d, dmin, scale, minimum;
    typename S::F error;
    typename Search<S>::Line line() const {
      return {S::mul(d, scale), S::sub(S::zero(), S::mul(dmin, minimum))};
    }
  };

  template <class S>
  static typename S::F turn_over(Lanes<S, N>& in) {
    using F = typename S::F;
    F low = in.x[0], high = in.x[0];
    for (int k = 1; k < N; ++k) {
      low = S::min(low, in.x[k]);
      high = S::max(high, in.x[k]);
    }
    // How far sub-blocks are above zero, and below.
    const F above = S::max(low, S::zero()), below = S::max(S::sub(S::zero(), high), S::zero());
    const F over = improves<S, Subs>(below, above);
    const F sign = S::where_less(S::zero(), over, S::set1(-1.0f), S::set1(1.0f));
    for (int k = 0; k < N; ++k) in.x[k] = S::mul(in.x[k], sign);
    return sign;
  }

  template <class S>
  static State<S> start(const Search<S>& search) {
    using F = typename S::F;
    using Units = UnitSearch<S, 0, High, Subs>;
    const typename Search<S>::Line line = search.from_zero(search.best());
    const typename Search<S>::Sums t = search.sums(line);
    // If s moves by a step, the best m moves by -drift, so the error rises less.
    const F drift = S::mul(t.q, inverse<S>(search.total));
    State<S> state;
    state.d = Units::best(search.in, line.s, S::sub(t.qq, S::mul(t.q, drift)));
    state.scale = Integer::template nearest<S>(S::mul(line.s, inverse<S>(state.d)));
    const F change = S::sub(S::mul(state.d, state.scale), line.s);
    const F wanted = S::max(S::sub(S::mul(drift, change), line.m), S::zero());
    state.dmin = Units::best(search.in, wanted, search.total);
    state.minimum = Integer::template nearest<S>(S::mul(wanted, inverse<S>(state.dmin)));
    state.error = search.error(state.line());
    return state;
  }

  template <class S>
  static void try_neighbours(const Search<S>& search, State<S>& state) {
    using F = typename S::F;
    const State<S> middle = state;
    for (int i = -1; i <= 1; ++i)
      for (int j = -1; j <= 1; ++j) {
        const F step_s = S::set1(static_cast<float>(i)), step_m = S::set1(static_cast<float>(j));
        State<S> other = middle;
        other.scale = Integer::template nearest<S>(S::add(middle.scale, step_s));
        other.minimum = Integer::template nearest<S>(S::add(middle.minimum, step_m));
        const F e = search.error(other.line());
        state.scale = S::where_less(e, state.error, other.scale, state.scale);
        state.minimum = S::where_less(e, state.error, other.minimum, state.minimum);
        state.error = S::where_less(e, state.error, e, state.error);
      }
  }

  // Moves to the best units for the same integers, if they are better once rounded.
  template <class S>
  static void move_units(const Search<S>& search, State<S>& state) {
    using F = typename S::F;
    const typename Search<S>::Sums t = search.sums(state.line());
    const F ss = S::mul(S::mul(state.scale, state.scale), t.qq);
    const F sm = S::mul(S::mul(state.scale, state.minimum), t.q);
    const F mm = S::mul(S::mul(state.minimum, state.minimum), search.total);
    const Row<S> of_ss(ss), of_sm(sm), of_mm(mm);
    const Row<S> of_s(S::mul(state.scale, t.rq)), of_m(S::mul(state.minimum, t.r));
    Row<S> d(state.d), dmin(state.dmin);
    for (int g = 0; g < kLanes; g += Subs) {
      const float a = of_ss.sum(g), b = -of_sm.sum(g), c = of_mm.sum(g);
      const float p = of_s.sum(g), q = -of_m.sum(g), determinant = a * c - b * b;
      if (determinant > 1e-6f * a * c) {
        d.fill(g, d.v[g] + (p * c - q * b) / determinant);
        dmin.fill(g, dmin.v[g] + (q * a - p * b) / determinant);
      } else if (a > 0.0f) {
        d.fill(g, d.v[g] + p / a);
      }
    }
    State<S> moved = state;
    moved.d = search.in.as_halves(d.load());
    moved.dmin = search.in.as_halves(dmin.load());
    const F e = search.error(moved.line()), better = improves<S, Subs>(e, state.error);
    state.d = S::where_less(S::zero(), better, moved.d, state.d);
    state.dmin = S::where_less(S::zero(), better, moved.dmin, state.dmin);
    state.error = S::where_less(S::zero(), better, e, state.error);
  }
};

}  // namespace pyflow::quant
