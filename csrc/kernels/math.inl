// exp and tanh, sixteen lanes at a time, from the vocabulary alone: the same bits from every table.

// e^x to 2 ulp for x in [-87.3, 88.7]; 0 below, +inf above. Cephes-style: x = n ln2 + r, |r| <= ln2/2,
// with ln2 in two parts so that r is exact, and a degree-6 minimax polynomial for e^r.
static inline Simd::F exp_lanes(Simd::F x) {
  using S = Simd;
  const S::F lo = S::set1(-87.33654f), hi = S::set1(88.72283f);
  const S::F clamped = S::min(S::max(x, lo), hi);
  const S::I n = S::to_i(S::mul(clamped, S::set1(1.44269504f)));
  const S::F nf = S::to_f(n);
  S::F r = S::fnma(nf, S::set1(0.693359375f), clamped);
  r = S::fnma(nf, S::set1(-2.12194440e-4f), r);
  S::F p = S::set1(1.9875691500e-4f);
  p = S::fma(p, r, S::set1(1.3981999507e-3f));
  p = S::fma(p, r, S::set1(8.3334519073e-3f));
  p = S::fma(p, r, S::set1(4.1665795894e-2f));
  p = S::fma(p, r, S::set1(1.6666665459e-1f));
  p = S::fma(p, r, S::set1(5.0000001201e-1f));
  p = S::fma(S::mul(r, r), p, S::add(r, S::set1(1.0f)));
  // 2^n as two factors: n = 128 would overflow a single exponent field.
  const S::I half = S::sar<1>(n), rest = S::isub(n, half);
  const S::F a = S::bits_f(S::shl<23>(S::iadd(half, S::iset1(127))));
  const S::F b = S::bits_f(S::shl<23>(S::iadd(rest, S::iset1(127))));
  const S::F y = S::mul(S::mul(p, a), b);
  // -inf and everything under the range give exactly 0: lanes that are hidden must not count.
  return S::where_less(x, lo, S::zero(), y);
}
