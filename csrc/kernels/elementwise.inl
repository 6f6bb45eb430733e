// Everything between the matrix products: work on single values, norms, rotary positions, and the
// format of the KV cache. Sums have a fixed order, so that all tables give the same bits.

// The last n < 16 values of a row, as a vector whose other lanes are `fill`.
static inline Simd::F load_tail(const float* p, int64_t n, float fill) {
  float lanes[16];
  for (int64_t i = 0; i < 16; ++i) lanes[i] = i < n ? p[i] : fill;
  return Simd::load(lanes);
}

// out[i] = f(a[i], b[i]); out may be a or b.
template <class Function>
static inline void map(const float* a, const float* b, float* out, int64_t n, Function f) {
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) Simd::store(out + i, f(Simd::load(a + i), Simd::load(b + i)));
  if (i < n) {
    float lanes[16];
    Simd::store(lanes, f(load_tail(a + i, n - i, 0.0f), load_tail(b + i, n - i, 0.0f)));
    for (int64_t j = i; j < n; ++j) out[j] = lanes[j - i];
  }
}

// The mean of f over a row. Lanes past its end are `fill`, for which f must add nothing. f(v, sum)
// adds v to a sum. Four chains of sixteen lanes hide the latency of fma; they are joined pairwise
// at the end.
template <class Function>
static inline float mean(const float* x, int64_t n, float fill, Function f) {
  using S = Simd;
  S::F sum[4] = {S::zero(), S::zero(), S::zero(), S::zero()};
  int64_t i = 0;
  for (; i + 64 <= n; i += 64)
    for (int c = 0; c < 4; ++c) sum[c] = f(S::load(x + i + 16 * c), sum[c]);
  for (int c = 0; i < n; ++c, i += 16)
    sum[c] = f(i + 16 <= n ? S::load(x + i) : load_tail(x + i, n - i, fill), sum[c]);
  const float total = S::reduce_add(S::add(S::add(sum[0], sum[1]), S::add(sum[2], sum[3])));
  return total / static_cast<float>(n);
}

static void rms_norm(const float* x, const float* weight, float eps, int64_t n, float* y) {
  using S = Simd;
  const float square = mean(x, n, 0.0f, [](S::F v, S::F sum) { return S::fma(v, v, sum); });
  const S::F inverse = S::set1(1.0f / __builtin_sqrtf(square + eps));
  map(x, weight, y, n, [&](S::F v, S::F w) { return S::mul(S::mul(v, inverse), w); });
}

static void layer_norm(const float* x, const float* weight, float eps, int64_t n, float* y) {
  using S = Simd;
  const float middle = mean(x, n, 0.0f, [](S::F v, S::F sum) { return S::add(v, sum); });
  const S::F m = S::set1(middle);
  const float variance = mean(x, n, middle, [&](S::F v, S::F sum) {
    const S::F d = S::sub(v, m);
    return S::fma(d, d, sum);
  });
  const S::F inverse = S::set1(1.0f / __builtin_sqrtf(variance + eps));
  map(x, weight, y, n, [&](S::F v, S::F w) { return S::mul(S::mul(S::sub(v, m), inverse), w); });
}

static void add(float* x, const float* y, int64_t n) {
  map(x, y, x, n, [](Simd::F a, Simd::F b) { return Simd::add(a, b); });
}

static void add_scaled(float* x, const float* y, float s, int64_t n) {
  const Simd::F factor = Simd::set1(s);
  map(x, y, x, n, [&](Simd::F a, Simd::F b) { return Simd::fma(factor, b, a); });
}

static void scale(float* x, float s, int64_t n) {
  const Simd::F factor = Simd::set1(s);
  map(x, x, x, n, [&](Simd::F a, Simd::F) { return Simd::mul(a, factor); });
}

static void softcap(float* x, float cap, int64_t n) {
  const Simd::F c = Simd::set1(cap);
  map(x, x, x, n, [&](Simd::F a, Simd::F) { return softcap_lanes(a, c); });
}

// Calls f with the function of an activation.
template <class Function>
static inline void with_activation(Activation activation, Function f) {
  switch (activation) {
    case Activation::Silu:
      return f([](Simd::F a) { return silu_lanes(a); });
    case Activation::Gelu:
      return f([](Simd::F a) { return gelu_lanes(a); });
    case Activation::GeluTanh:
      return f([](Simd::F a) { return gelu_tanh_lanes(a); });
    case Activation::Relu:
      return f([](Simd::F a) { return relu_lanes(a); });
    case Activation::SwigluClamped:
      return f([](Simd::F a) { return clamped_swish_lanes(a); });
  }
}

static void activate(Activation activation, float* x, int64_t n) {
  with_activation(activation,
                  [&](auto f) { map(x, x, x, n, [f](Simd::F a, Simd::F) { return f(a); }); });
}

static void gate(Activation activation, float* g, const float* up, int64_t n) {
  if (activation == Activation::SwigluClamped)
    return map(g, up, g, n, [](Simd::F a, Simd::F u) { return swiglu_clamped_lanes(a, u); });
  with_activation(activation, [&](auto f) {
    map(g, up, g, n, [f](Simd::F a, Simd::F u) { return Simd::mul(f(a), u); });
  });
}

// A pair (a, b) turns into (a cos - b sin, b cos + a sin): the product with cos is rounded, the
// other is fused, in both orders of pairs.
static void rope(float* head, const float* cos_sin, int64_t n_pairs, bool interleaved) {
  using S = Simd;
  const float *cos = cos_sin, *sin = cos_sin + n_pairs;
  int64_t i = 0;
  for (; i + 16 <= n_pairs; i += 16) {
    const S::F c = S::load(cos + i), s = S::load(sin + i);
    if (interleaved) {
      const S::F minus_s = S::mul(s, S::set1(-1.0f));
      const S::F x0 = S::load(head + 2 * i), x1 = S::load(head + 2 * i + 16);
      S::store(head + 2 * i,
               S::fma(S::swap_pairs(x0), S::zip_lo(minus_s, s), S::mul(x0, S::zip_lo(c, c))));
      S::store(head + 2 * i + 16,
               S::fma(S::swap_pairs(x1), S::zip_hi(minus_s, s), S::mul(x1, S::zip_hi(c, c))));
    } else {
      const S::F a = S::load(head + i), b = S::load(head + n_pairs + i);
      S::store(head + i, S::fnma(b, s, S::mul(a, c)));
      S::store(head + n_pairs + i, S::fma(a, s, S::mul(b, c)));
    }
  }
  for (; i < n_pairs; ++i) {
    float* pa = interleaved ? head + 2 * i : head + i;
    float* pb = interleaved ? head + 2 * i + 1 : head + n_pairs + i;
    const float a = *pa, b = *pb;
    *pa = __builtin_fmaf(-b, sin[i], a * cos[i]);
    *pb = __builtin_fmaf(a, sin[i], b * cos[i]);
  }
}

// log(sum(exp(x))) as max + log(sum(exp(x - max))), in sixteen sums of double. Without a number
// above -inf the result is -inf.
static double log_sum_exp(const float* x, int64_t n) {
  using S = Simd;
  const float ninf = -__builtin_inff();
  S::F top = S::set1(ninf);
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) top = S::max(S::load(x + i), top);
  if (i < n) top = S::max(load_tail(x + i, n - i, ninf), top);
  // If nothing exceeds -inf, subtract 0, so that the sum distinguishes zeros from NaNs.
  const float highest = S::reduce_max(top), m = highest == ninf ? 0.0f : highest;
  double sum[16] = {};
  for (i = 0; i < n; i += 16) {
    const S::F v = i + 16 <= n ? S::load(x + i) : load_tail(x + i, n - i, ninf);
    float e[16];
    S::store(e, exp_nonpositive_lanes(S::sub(v, S::set1(m))));
    for (int lane = 0; lane < 16; ++lane) sum[lane] += static_cast<double>(e[lane]);
  }
  for (int width = 8; width; width /= 2)
    for (int lane = 0; lane < width; ++lane) sum[lane] += sum[lane + width];
  return static_cast<double>(m) + __builtin_log(sum[0]);
}

// Eight chains of loads keep the memory system busy; adding is cheaper than any load that misses.
template <bool Prefetch>
static uint64_t read_bytes(const uint8_t* p, int64_t nbytes) {
  using S = Simd;
  const auto at = [p](int64_t i) { return S::load_i32(reinterpret_cast<const int32_t*>(p + i)); };
  S::I sum[8];
  for (auto& s : sum) s = S::izero();
  int64_t i = 0;
  for (; i + 512 <= nbytes; i += 512)
    for (int c = 0; c < 8; ++c) {
      if constexpr (Prefetch) S::prefetch(p + i + 64 * c + kPrefetchAhead);
      sum[c] = S::iadd(sum[c], at(i + 64 * c));
    }
  for (; i + 64 <= nbytes; i += 64) sum[0] = S::iadd(sum[0], at(i));
  int32_t lanes[16];
  uint64_t total = 0;
  for (const auto& s : sum) {
    S::store_i32(lanes, s);
    for (const int32_t lane : lanes) total += static_cast<uint32_t>(lane);
  }
  return total;
}

static uint64_t read_bytes(const uint8_t* p, int64_t nbytes, bool prefetch) {
  return prefetch ? read_bytes<true>(p, nbytes) : read_bytes<false>(p, nbytes);
}

// Half of the registers hold sums: enough to hide the latency of a dot product without a spill.
// Weights of 4 bits allow a machine without VNNI the most additions before it widens.
static int64_t dot_peak(int64_t n, const uint8_t* weights, const int8_t* acts, int32_t* sums) {
  using S = Simd;
  constexpr int kChains = S::kAccumulators < 2 ? 1 : S::kAccumulators / 2;
  constexpr int64_t kMultiplies = 16 * 16;  // of a dot16
  const S::B w = S::bload(weights), w4[4] = {w, w, w, w};
  S::I sum[kChains];
  for (auto& s : sum) s = S::izero();
  int64_t done = 0;
  for (int64_t at = 0; done < n; done += kChains * kMultiplies) {
#pragma GCC unroll 16
    for (int c = 0; c < kChains; ++c, at += 16)
      sum[c] = S::dot16_u<15>(sum[c], w4, acts + at % kPeakActs);
  }
  for (int c = 1; c < kChains; ++c) sum[0] = S::iadd(sum[0], sum[c]);
  S::store_i32(sums, sum[0]);
  return done;
}

static inline void fill_elementwise(KernelTable& t) {
  t.rms_norm = rms_norm;
  t.layer_norm = layer_norm;
  t.add = add;
  t.add_scaled = add_scaled;
  t.scale = scale;
  t.softcap = softcap;
  t.activate = activate;
  t.gate = gate;
  t.rope = rope;
  t.log_sum_exp = log_sum_exp;
  t.read_bytes = read_bytes;
  t.dot_peak = dot_peak;
}
