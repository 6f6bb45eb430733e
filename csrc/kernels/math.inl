// exp, tanh and the activations built on them, sixteen lanes at a time, from the vocabulary alone:
// the same bits from every table. A NaN gives a NaN, of any sign and payload.

// x = n ln2 + r with |r| <= ln2 / 2, and expm1(r) = e^r - 1. Adding 1.5 * 2^23 rounds to an integer
// and leaves it in the low bits of the sum, so no conversion is needed and no x is out of range.
// ln2 comes in two parts, the first with trailing zeros, so that n * ln2_hi is exact for every |n|
// < 2^9.
struct ExpParts {
  Simd::F expm1_r;
  Simd::I n_shifted;  // n << 23: ready to be added to an exponent field
};
static inline ExpParts exp_parts(Simd::F x) {
  using S = Simd;
  const S::F magic = S::set1(12582912.0f);
  const S::F t = S::fma(x, S::set1(1.44269504f), magic);
  const S::F n = S::sub(t, magic);
  S::F r = S::fnma(n, S::set1(0.693359375f), x);
  r = S::fnma(n, S::set1(-2.12194440e-4f), r);
  // Cephes' minimax polynomial for (e^r - 1 - r) / r^2.
  S::F p = S::set1(1.9875691500e-4f);
  p = S::fma(p, r, S::set1(1.3981999507e-3f));
  p = S::fma(p, r, S::set1(8.3334519073e-3f));
  p = S::fma(p, r, S::set1(4.1665795894e-2f));
  p = S::fma(p, r, S::set1(1.6666665459e-1f));
  p = S::fma(p, r, S::set1(5.0000001201e-1f));
  return {S::fma(S::mul(p, r), r, r), S::shl<23>(S::bits_i(t))};
}

// e^x to 1.02 ulp (tested on every 29th float). Exactly 0 below ln(FLT_MIN), so that lanes hidden
// by -inf do not count and no subnormal arises; exactly 1 at 0; +inf if e^x would round past
// FLT_MAX.
static inline Simd::F exp_lanes(Simd::F x) {
  using S = Simd;
  const ExpParts e = exp_parts(x);
  // n is added to the exponent field. It fits at both ends: n = 128 occurs only with e^r < 1.
  const S::F y = S::bits_f(S::iadd(S::bits_i(S::add(e.expm1_r, S::set1(1.0f))), e.n_shifted));
  const S::F lowest = S::set1(-87.33654f), above = S::set1(88.722839f),
             inf = S::set1(__builtin_inff());
  return S::where_less(x, lowest, S::zero(), S::where_less(x, above, y, S::add(x, inf)));
}

// e^x for x <= 0, in fewer steps: 2^n cannot overflow, so it is a factor, which keeps a NaN.
static inline Simd::F exp_nonpositive_lanes(Simd::F x) {
  using S = Simd;
  const ExpParts e = exp_parts(x);
  const S::F two_n = S::bits_f(S::iadd(S::bits_i(S::set1(1.0f)), e.n_shifted));
  return S::where_less(x, S::set1(-87.33654f), S::zero(), S::fma(two_n, e.expm1_r, two_n));
}

// tanh(x) = sign(x) * (e^2|x| - 1) / (e^2|x| + 1), to 2.4 ulp: through expm1 small x keep full
// accuracy.
static inline Simd::F tanh_lanes(Simd::F x) {
  using S = Simd;
  // Past 9.02 the result rounds to 1; the bound keeps the exponent small. min(10, a) keeps a NaN.
  const S::F a = S::min(S::set1(10.0f), S::abs(x));
  const ExpParts e = exp_parts(S::add(a, a));
  const S::F one = S::set1(1.0f), two_n = S::bits_f(S::iadd(S::bits_i(one), e.n_shifted));
  const S::F m = S::fma(two_n, e.expm1_r, S::sub(two_n, one));  // e^2a - 1
  const S::F y = S::div(m, S::add(m, S::set1(2.0f)));
  const S::I sign = S::iand(S::bits_i(x), S::bits_i(S::set1(-0.0f)));
  return S::bits_f(S::ior(S::bits_i(y), sign));
}

static inline Simd::F softcap_lanes(Simd::F x, Simd::F cap) {
  return Simd::mul(cap, tanh_lanes(Simd::div(x, cap)));
}

// x * sigmoid(x)
static inline Simd::F silu_lanes(Simd::F x) {
  using S = Simd;
  return S::div(x, S::add(S::set1(1.0f), exp_lanes(S::sub(S::zero(), x))));
}

// x times the normal distribution at x. For a = |x| its tail is Phi(-a) = e^(-a^2 / 2) g(a), and
// g(a) = t p(t) with t = 1 / (1 + 0.3 a), p fitted to 4e-9 for a up to 14, past which the tail is
// nothing; so negative x keep their relative accuracy, up to the exponent's rounding.
static inline Simd::F gelu_lanes(Simd::F x) {
  using S = Simd;
  const S::F a = S::abs(x), one = S::set1(1.0f);
  const S::F t = S::div(one, S::fma(S::set1(0.3f), a, one));
  S::F p = S::set1(-0.020612948f);
  p = S::fma(p, t, S::set1(0.11237642f));
  p = S::fma(p, t, S::set1(-0.22806904f));
  p = S::fma(p, t, S::set1(0.19158372f));
  p = S::fma(p, t, S::set1(-0.07924903f));
  p = S::fma(p, t, S::set1(0.09605874f));
  p = S::fma(p, t, S::set1(0.078425266f));
  p = S::fma(p, t, S::set1(0.11022739f));
  p = S::fma(p, t, S::set1(0.11957283f));
  p = S::fma(p, t, S::set1(0.11968663f));
  const S::F e = exp_nonpositive_lanes(S::mul(S::mul(a, a), S::set1(-0.5f)));
  const S::F tail = S::mul(S::mul(t, p), e);
  return S::mul(x, S::where_less(x, S::zero(), tail, S::sub(one, tail)));
}

// x * sigmoid(1.702 x) of x clamped to at most 7.
static inline Simd::F clamped_swish_lanes(Simd::F x) {
  using S = Simd;
  const S::F most = S::set1(7.0f), a = S::where_less(most, x, most, x);
  return S::div(a, S::add(S::set1(1.0f), exp_lanes(S::mul(a, S::set1(-1.702f)))));
}

static inline Simd::F swiglu_clamped_lanes(Simd::F g, Simd::F u) {
  using S = Simd;
  const S::F most = S::set1(7.0f), least = S::set1(-7.0f);
  const S::F a = S::where_less(most, u, most, S::where_less(u, least, least, u));
  return S::mul(clamped_swish_lanes(g), S::add(a, S::set1(1.0f)));
}

static inline Simd::F relu_lanes(Simd::F x) {
  return Simd::where_less(x, Simd::zero(), Simd::zero(), x);
}

// 0.5 x (1 + tanh(u)) with u = sqrt(2/pi) (x + 0.044715 x^3). Since 0.5 (1 + tanh(u)) =
// sigmoid(2u), this needs no tanh, and negative x keep their relative accuracy where 1 + tanh(u)
// would cancel.
static inline Simd::F gelu_tanh_lanes(Simd::F x) {
  using S = Simd;
  const S::F minus_2u =
      S::mul(x, S::fma(S::mul(x, x), S::set1(-0.0713548163f), S::set1(-1.59576912f)));
  return S::div(x, S::add(S::set1(1.0f), exp_lanes(minus_2u)));
}
