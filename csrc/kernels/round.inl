// Weights of a block to levels, sixteen rows side by side, from the last weight to the first: each
// error moves those before it. One fma for each, in the order in which the errors arise.

// The levels of a weight are first + q * step. Returns the value, and q.
static inline Simd::F round_even(const RoundArgs& args, int64_t k, Simd::F x, Simd::I& q) {
  using S = Simd;
  const S::F first = S::load(args.levels + 16 * k), step = S::load(args.levels + 16 * (args.n + k));
  const S::F size = S::abs(step), least = S::set1(1e-45f), one = S::set1(1.0f);
  const S::F inverse = S::where_less(size, least, S::zero(), S::div(one, step));
  const S::F last = S::set1(static_cast<float>(args.n_levels - 1));
  q = S::to_i(S::min(S::max(S::mul(S::sub(x, first), inverse), S::zero()), last));
  return S::add(first, S::mul(S::to_f(q), step));
}

// They rise, or fall, in steps that differ: n_levels for each weight.
static inline Simd::F round_uneven(const RoundArgs& args, int64_t k, Simd::F x, Simd::I& q) {
  using S = Simd;
  const auto level = [&](int64_t i) { return S::load(args.levels + 16 * (i * args.n + k)); };
  const S::F one = S::set1(1.0f), zero = S::zero(), half = S::set1(0.5f);
  const S::F sign = S::where_less(level(args.n_levels - 1), level(0), S::sub(zero, one), one);
  const S::F y = S::mul(sign, x);
  S::F below = level(0), value = below, number = zero;
  for (int64_t i = 1; i < args.n_levels; ++i) {
    const S::F above = level(i);
    const S::F middle = S::mul(S::mul(sign, half), S::add(below, above));
    value = S::where_less(middle, y, above, value);
    number = S::add(number, S::where_less(middle, y, one, zero));
    below = above;
  }
  q = S::to_i(number);
  return value;
}

static void round_lanes(const RoundArgs& args) {
  using S = Simd;
  for (int64_t k = args.n - 1; k >= 0; --k) {
    S::I q;
    const S::F x = S::load(args.x + 16 * k);
    const S::F value = args.even ? round_even(args, k, x, q) : round_uneven(args, k, x, q);
    S::store_i32(args.q + 16 * k, q);
    const S::F error = S::sub(S::load(args.w + 16 * k), value);
    const float* factors = args.factors + k * args.factors_stride;
    for (int64_t i = 0; i < k; ++i)
      S::store(args.x + 16 * i, S::fma(S::set1(factors[i]), error, S::load(args.x + 16 * i)));
  }
}
