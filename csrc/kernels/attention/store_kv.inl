// How keys and values are written into cells, and keys read.

// x ~ d * q with d = max|x| / 127 in f16. q is clamped, because it is divided by the rounded d, and
// a subnormal d may be rounded far down. A block with an infinity or a NaN gets d = NaN, so that it
// stays visible.
static inline void quantize_q8(const float* x, uint16_t* d, int8_t* q) {
  using S = Simd;
  const S::F a = S::load(x), b = S::load(x + 16), zero = S::zero();
  const float top = S::reduce_max(S::max(S::abs(a), S::abs(b)));
  const float poison = S::reduce_add(S::fma(a, zero, S::mul(b, zero)));  // 0, or nan
  uint16_t half[16];
  float back[16];
  S::store_f16(half, S::set1(top / 127.0f));
  *d = poison == 0.0f ? half[0] : 0x7e00;
  S::store(back, S::set1_f16(d));
  const S::F inverse = S::set1(back[0] > 0.0f ? 1.0f / back[0] : 0.0f);
  const S::F lo = S::set1(-127.0f), hi = S::set1(127.0f);
  const auto round = [&](S::F v) { return S::to_i(S::min(S::max(S::mul(v, inverse), lo), hi)); };
  S::store_i8(q, round(a));
  S::store_i8(q + 16, round(b));
}

static inline void store_key(const KvView& kv, int64_t slot, int64_t head, const float* k) {
  const int64_t lane = slot % 16;
  if (kv.type == CacheType::F16) {
    uint16_t* to = key_f16(kv, slot, head) + lane;
    for (int64_t i = 0; i < kv.key_dim; i += 16) {
      uint16_t half[16];
      Simd::store_f16(half, Simd::load(k + i));
      for (int64_t j = 0; j < 16; ++j) to[(i + j) * 16] = half[j];
    }
  } else {
    KeyQ8* to = key_q8(kv, slot, head);
    for (int64_t i = 0; i < kv.key_dim; i += 32, ++to) {
      int8_t q[32];
      quantize_q8(k + i, &to->d[lane], q);
      for (int64_t j = 0; j < 32; ++j) to->q[j * 16 + lane] = q[j];
    }
  }
}

static inline void store_value(const KvView& kv, int64_t slot, int64_t head, const float* v) {
  if (kv.type == CacheType::F16) {
    uint16_t* to = value_f16(kv, slot, head);
    for (int64_t i = 0; i < kv.value_dim; i += 16) Simd::store_f16(to + i, Simd::load(v + i));
  } else {
    ValueQ8* to = value_q8(kv, slot, head);
    for (int64_t i = 0; i < kv.value_dim; i += 32, ++to) quantize_q8(v + i, &to->d, to->q);
  }
}

static void store_kv(const KvView& kv, int64_t slot, int64_t kv_head, const float* k,
                     const float* v) {
  store_key(kv, slot, kv_head, k);
  if (!kv.values_in_keys) store_value(kv, slot, kv_head, v);
}

static void store_k(const KvView& kv, int64_t slot, const float* k) {
  for (int64_t head = 0; head < kv.n_kv_heads; ++head)
    store_key(kv, slot, head, k + head * kv.key_dim);
}

static void load_k(const KvView& kv, int64_t slot, float* k) {
  const int64_t lane = slot % 16;
  for (int64_t head = 0; head < kv.n_kv_heads; ++head, k += kv.key_dim) {
    for (int64_t i = 0; i < kv.key_dim; ++i) {
      float cells[16];
      if (kv.type == CacheType::F16) {
        Simd::store(cells, Simd::load_f16(key_f16(kv, slot, head) + i * 16));
      } else {
        const KeyQ8& from = key_q8(kv, slot, head)[i / 32];
        Simd::store(cells, Simd::mul(Simd::load_f16(from.d), Simd::load_i8f(from.q + i % 32 * 16)));
      }
      k[i] = cells[lane];
    }
  }
}
