// Rounds the weights of a block to levels, last to first, by beam search. Rounding weight k leaves
// an error, which is pushed onto the targets of the weights before it (RoundArgs::factors); the
// goal is the least weighted sum of squared rounding errors.
//
// The nearest level is the best for one weight alone, but its error may suit earlier weights badly.
// So each row keeps its four best candidates. At every weight each of them continues in two ways,
// by the nearest level and by the next one on the other side of the target; the four cheapest of
// these eight stay. This is the M algorithm (Anderson and Mohan, 1984).
//
// For example, levels 0, 1, 2, weights {0.3, 1.4}, factors[1][0] = 0.5 and importance 1. Rounding
// 1.4 to 1 leaves 0.4 and moves the other target to 0.3 + 0.5 * 0.4 = 0.5, which costs 0.4^2 +
// 0.5^2 = 0.41. Rounding 1.4 to 2 leaves -0.6 and moves it to 0.3 - 0.5 * 0.6 = 0, which costs
// 0.36.
//
// Four candidates leave 0.96 to 0.99 of the error that one leaves on smollm2's matrices, whose
// scales are searched for several times, and 0.85 to 0.95 where few directions carry most of 256 to
// 768 inputs; encoding takes 1.4 times as long.
//
// A vector holds four rows x four candidates, each row's best first.

// Lanes of own_lane(r): the number, within its row, of the lane r further on (modulo 4).
static inline Simd::I own_lane(int r) {
  static const int32_t kLanes[4][16] = {{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3},
                                        {1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0},
                                        {2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1},
                                        {3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2}};
  return Simd::load_i32(kLanes[r]);
}

constexpr float kNever = 3e38f;  // the cost of a candidate that does not exist

// The two ways to round a weight: the nearest level, and the next one on the target's other side.
struct Choice {
  Simd::F value, number;
  Simd::F other_value, other_number;  // outside 0 .. n_levels - 1: no such level
};

// The levels of a weight are first + q * step.
static inline Choice choose_even(const RoundArgs& args, int64_t k, Simd::F x) {
  using S = Simd;
  const S::F first = S::load(args.levels + 16 * k), step = S::load(args.levels + 16 * (args.n + k));
  const S::F size = S::abs(step), least = S::set1(1e-45f), one = S::set1(1.0f);
  const S::F inverse = S::where_less(size, least, S::zero(), S::div(one, step));
  const S::F last = S::set1(static_cast<float>(args.n_levels - 1));
  const S::F y = S::min(S::max(S::mul(S::sub(x, first), inverse), S::zero()), last);
  Choice c;
  c.number = S::to_f(S::to_i(y));
  c.other_number = S::add(c.number, S::where_less(c.number, y, one, S::set1(-1.0f)));
  c.value = S::add(first, S::mul(c.number, step));
  c.other_value = S::add(first, S::mul(c.other_number, step));
  return c;
}

// Uneven levels, ascending or descending, n_levels for each weight.
static inline Choice choose_uneven(const RoundArgs& args, int64_t k, Simd::F x) {
  using S = Simd;
  const auto level = [&](int64_t i) { return S::load(args.levels + 16 * (i * args.n + k)); };
  const S::F one = S::set1(1.0f), half = S::set1(0.5f);
  const S::F sign = S::where_less(level(args.n_levels - 1), level(0), S::set1(-1.0f), one);
  const S::F y = S::mul(sign, x);
  Choice c;
  c.value = level(0);
  c.number = S::zero();
  S::F lower = c.value, upper = level(1), below = c.value;
  for (int64_t i = 1; i < args.n_levels; ++i) {
    const S::F above = level(i), next = level(i + 1 < args.n_levels ? i + 1 : i);
    const S::F middle = S::mul(S::mul(sign, half), S::add(below, above));
    lower = S::where_less(middle, y, below, lower);
    upper = S::where_less(middle, y, next, upper);
    c.value = S::where_less(middle, y, above, c.value);
    c.number = S::add(c.number, S::where_less(middle, y, one, S::zero()));
    below = above;
  }
  const S::F nearest = S::mul(sign, c.value);
  c.other_value = S::where_less(nearest, y, upper, lower);
  c.other_number = S::add(c.number, S::where_less(nearest, y, one, S::set1(-1.0f)));
  return c;
}

// Keeps the four cheapest of each row's eight continuations, cheapest first; of equal ones that of
// the nearest level, then that of the better candidate. parent: the candidate that each continues;
// by_other: 1 if by the other level.
static inline void select(Simd::F nearest, Simd::F other, Simd::I& parent, Simd::F& by_other) {
  using S = Simd;
  const S::F one = S::set1(1.0f), zero = S::zero(), half = S::set1(0.5f),
             lane = S::to_f(own_lane(0));
  // A candidate's own other level ranks first only if it costs less.
  S::F other_rank = S::where_less(other, nearest, zero, one), rank = S::sub(one, other_rank);
  for (int r = 1; r < 4; ++r) {
    const S::I at = own_lane(r);
    const S::F n = S::permute4(nearest, at), o = S::permute4(other, at), from = S::to_f(at);
    // Of equal ones the lower lane.
    const auto before = [&](S::F theirs, S::F ours) {
      return S::where_less(from, lane, S::where_less(ours, theirs, zero, one),
                           S::where_less(theirs, ours, one, zero));
    };
    rank = S::add(rank, S::add(before(n, nearest), S::where_less(o, nearest, one, zero)));
    other_rank = S::add(other_rank, S::add(S::where_less(other, n, zero, one), before(o, other)));
  }
  S::F from = zero;
  by_other = zero;
  for (int r = 0; r < 4; ++r) {
    const S::I at = own_lane(r);
    const S::F number = S::to_f(at);
    const auto is_own = [&](S::F ranks, S::F yes, S::F no) {
      return S::where_less(S::abs(S::sub(S::permute4(ranks, at), lane)), half, yes, no);
    };
    from = is_own(rank, number, is_own(other_rank, number, from));
    by_other = is_own(other_rank, one, by_other);
  }
  parent = S::to_i(from);
}

static void round_paths(const RoundArgs& args) {
  using S = Simd;
  const S::F zero = S::zero(), half = S::set1(0.5f), never = S::set1(kNever);
  const S::F beyond = S::set1(static_cast<float>(args.n_levels) - 0.5f);
  // At first there is one candidate.
  S::F cost = S::where_less(half, S::to_f(own_lane(0)), never, zero);
  for (int64_t k = args.n - 1; k >= 0; --k) {
    const S::F x = S::load(args.x + 16 * k), weight = S::set1(args.importance[k]);
    const Choice c = args.even ? choose_even(args, k, x) : choose_uneven(args, k, x);
    const auto costs = [&](S::F value) {
      const S::F rest = S::sub(x, value);
      return S::min(S::fma(S::mul(weight, rest), rest, cost), never);
    };
    const S::F nearest = costs(c.value);
    const S::F other =
        S::where_less(c.other_number, zero, never,
                      S::where_less(c.other_number, beyond, costs(c.other_value), never));
    S::I parent;
    S::F by_other;
    select(nearest, other, parent, by_other);
    const auto taken = [&](S::F a, S::F b) {
      return S::where_less(half, by_other, S::permute4(b, parent), S::permute4(a, parent));
    };
    cost = taken(nearest, other);
    const S::F number = S::min(S::max(taken(c.number, c.other_number), zero),
                               S::set1(static_cast<float>(args.n_levels - 1)));
    S::store_i32(args.q + 16 * k, S::to_i(number));
    S::store_i32(args.parents + 16 * k, parent);
    S::store(args.x + 16 * k, S::permute4(x, parent));
    const S::F error = S::sub(S::load(args.w + 16 * k), taken(c.value, c.other_value));
    const float* factors = args.factors + k * args.factors_stride;
    for (int64_t i = 0; i < k; ++i)
      S::store(args.x + 16 * i,
               S::fma(S::set1(factors[i]), error, S::permute4(S::load(args.x + 16 * i), parent)));
  }
}
