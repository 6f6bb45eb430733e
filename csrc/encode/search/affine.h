// Search for formats whose values are a scale times 0 .. Max plus a minimum: x ~ s * q + m.
//
// For given q, least squares in two unknowns gives the best s and m; for given s and m, the nearest
// q is the best. The range of the weights is tried as various numbers of steps, also as more than
// Max, which clips weights below, above or at both ends. Each trial is followed by two rounds of
// least squares, and the best one by three more.
//
// For example, weights {0, 1, 2, 3.6}, Max = 3. The range as three steps, s = 1.2 and m = 0, gives
// q = {0, 1, 2, 3} with the error 0.2^2 + 0.4^2 = 0.20; least squares for these q gives s = 1.18, m
// = -0.12, which leaves 0.11.
#pragma once

#include "encode/search/lanes.h"

namespace pyflow::quant {

// Bounded: m is at most 0.
template <class S, int Max, int N, bool Bounded>
struct LineSearch {
  using F = typename S::F;
  using Grid = Integers<0, Max>;
  struct Line {
    F s, m;
  };
  // What a line leaves with residuals r: error = sum w r^2; its slopes in s and m, rq = sum w r q
  // and r = sum w r; and qq = sum w q^2, q = sum w q.
  struct Sums {
    F error, rq, r, qq, q;
  };

  const Lanes<S, N>& in;
  F total;  // sum w

  explicit LineSearch(const Lanes<S, N>& weights) : in(weights), total(S::zero()) {
    for (int k = 0; k < N; ++k) total = S::add(total, in.w[k]);
  }

  static inline F nearest(F x, F m, F inverse_s) {
    return Grid::template nearest<S>(S::mul(S::sub(x, m), inverse_s));
  }
  Sums sums(const Line& l) const {
    const F inverse_s = inverse<S>(l.s);
    Sums t = {S::zero(), S::zero(), S::zero(), S::zero(), S::zero()};
    for (int k = 0; k < N; ++k) {
      const F q = nearest(in.x[k], l.m, inverse_s);
      const F r = S::sub(in.x[k], S::add(S::mul(l.s, q), l.m));
      const F wr = S::mul(in.w[k], r), wq = S::mul(in.w[k], q);
      t.error = S::add(t.error, S::mul(wr, r));
      t.rq = S::add(t.rq, S::mul(wr, q));
      t.r = S::add(t.r, wr);
      t.qq = S::add(t.qq, S::mul(wq, q));
      t.q = S::add(t.q, wq);
    }
    return t;
  }
  F error(const Line& l) const {
    const F inverse_s = inverse<S>(l.s);
    F e = S::zero();
    for (int k = 0; k < N; ++k) {
      const F q = nearest(in.x[k], l.m, inverse_s);
      const F r = S::sub(in.x[k], S::add(S::mul(l.s, q), l.m));
      e = S::add(e, S::mul(S::mul(in.w[k], r), r));
    }
    return e;
  }

  // The best line for the q of l, whose sums are t. If all q are equal, only the minimum moves.
  Line improved(const Line& l, const Sums& t) const {
    const F square = S::mul(t.qq, total), solvable = S::mul(square, S::set1(1e-6f));
    const F determinant = S::sub(square, S::mul(t.q, t.q));
    F ds = S::mul(S::sub(S::mul(t.rq, total), S::mul(t.r, t.q)), inverse<S>(determinant));
    ds = S::where_less(solvable, determinant, ds, S::zero());
    F dm = S::mul(S::sub(t.r, S::mul(ds, t.q)), inverse<S>(total));
    if constexpr (Bounded) {
      // Beyond the bound: m = 0, and the best scale for that.
      const F beyond = S::add(l.m, dm);
      const F alone = S::mul(S::add(t.rq, S::mul(l.m, t.q)), inverse<S>(t.qq));
      ds = S::where_less(S::zero(), beyond, alone, ds);
      dm = S::where_less(S::zero(), beyond, S::sub(S::zero(), l.m), dm);
    }
    return {S::max(S::add(l.s, ds), S::zero()), S::add(l.m, dm)};
  }
  // The error of the line `to` with the q of l.
  F error_after(const Line& l, const Sums& t, const Line& to) const {
    const F ds = S::sub(to.s, l.s), dm = S::sub(to.m, l.m);
    const F linear = S::add(S::mul(ds, t.rq), S::mul(dm, t.r));
    const F cross = S::mul(S::add(ds, ds), S::mul(dm, t.q));
    const F square = S::add(S::mul(S::mul(ds, ds), t.qq), S::mul(S::mul(dm, dm), total));
    const F e = S::add(S::sub(t.error, S::add(linear, linear)), S::add(cross, square));
    return S::max(e, S::zero());
  }

  Line best() const {
    F low = in.x[0], high = in.x[0];
    for (int k = 1; k < N; ++k) {
      low = S::min(low, in.x[k]);
      high = S::max(high, in.x[k]);
    }
    if constexpr (Bounded) low = S::min(low, S::zero());
    const F range = S::sub(high, low);
    Line best = {S::zero(), low};
    F least = error(best);
    const auto attempt = [&](float steps, float clipped_below) {
      const F s = S::mul(range, S::set1(1.0f / steps));
      F m = low;
      if (steps > Max) {
        const F clipped = S::sub(range, S::mul(s, S::set1(Max)));
        m = S::add(low, S::mul(clipped, S::set1(clipped_below)));
      }
      if constexpr (Bounded) m = S::min(m, S::zero());
      const Line first = {s, m}, second = improved(first, sums(first));
      const Sums t = sums(second);
      const Line third = improved(second, t);
      const F e = error_after(second, t, third);
      best.s = S::where_less(e, least, third.s, best.s);
      best.m = S::where_less(e, least, third.m, best.m);
      least = S::where_less(e, least, e, least);
    };
    // Whole numbers of steps find the grid of weights that have been quantized before. With 8 bits
    // 32 of them are enough: half the range would take four times as long. Other widths gain
    // nothing from far fewer steps.
    constexpr int kLeast = 1 + (Max > 63 ? Max - 32 : Max / 2);
    for (int steps = in.on_grid || kLeast > Max - 3 ? kLeast : Max - 3; steps <= Max; ++steps)
      attempt(static_cast<float>(steps), 0.0f);
    // Three times as many take 0.3 % off the error of Q4_K.
    const float beyond[4] = {0.5f, 1.0f, 2.0f, 3.0f};
    for (const float more : beyond)
      for (int side = 0; side <= 2; ++side)
        attempt(Max + more * (Max > 7 ? 1.0f : 0.5f), 0.5f * static_cast<float>(side));
    for (int turn = 0; turn < 3; ++turn) best = improved(best, sums(best));
    return best;
  }

  // The same values with q that begin at 0, if the bound allows it. If levels are left over, this
  // is the line whose minimum is nearest to zero.
  Line from_zero(const Line& l) const {
    const F inverse_s = inverse<S>(l.s);
    F least = S::set1(Max);
    for (int k = 0; k < N; ++k) least = S::min(least, nearest(in.x[k], l.m, inverse_s));
    const F m = S::add(l.m, S::mul(l.s, least));
    return {l.s, S::where_less(S::zero(), m, l.m, m)};
  }

  void store(const Line& l, int shared, Fields* out) const {
    const F inverse_s = inverse<S>(l.s);
    F index[N];
    for (int k = 0; k < N; ++k) index[k] = nearest(in.x[k], l.m, inverse_s);
    Lanes<S, N>::store_indices(index, shared, out);
  }
};

// Blocks of N weights with scale and minimum in f16. The neighbouring f16 of both are tried too.
template <int Max, int N>
struct AffineBlocks {
  static constexpr int kBlocks = kLanes;  // at once
  static constexpr int kLevels = Max + 1;
  static constexpr bool kEven = true;

  template <class S>
  static void run(const SearchInput& input, Fields* out) {
    using F = typename S::F;
    using Search = LineSearch<S, Max, N, false>;
    using Line = typename Search::Line;
    const Lanes<S, N> in(input, 1);
    const Search search(in);
    const Line found = search.best();
    uint16_t s[kLanes], m[kLanes], near_s[kLanes], near_m[kLanes];
    in.to_halves(found.s, s);
    in.to_halves(found.m, m);
    Line line = {in.from_halves(s), in.from_halves(m)};
    F least = search.error(line);
    for (int i = -1; i <= 1; ++i)
      for (int j = -1; j <= 1; ++j) {
        in.next_halves(s, i, near_s);
        in.next_halves(m, j, near_m);
        const Line other = {in.from_halves(near_s), in.from_halves(near_m)};
        const F e = search.error(other);
        line.s = S::where_less(e, least, other.s, line.s);
        line.m = S::where_less(e, least, other.m, line.m);
        least = S::where_less(e, least, e, least);
      }
    in.to_halves(line.s, s);
    in.to_halves(line.m, m);
    for (int l = 0; l < kLanes; ++l) {
      out[l].d = s[l];
      out[l].m = m[l];
    }
    search.store(line, 1, out);
  }
};

}  // namespace pyflow::quant
