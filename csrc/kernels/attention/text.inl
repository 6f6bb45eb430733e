// Attention among all rows of one text, for encoders: no cache, everything in f32. Keys fall into
// blocks of 256, counted from the text's start, and are softmaxed block by block with a running
// maximum. A row's result depends on the text alone: not on how rows are divided, nor on other
// texts.
inline constexpr int64_t kTextRows = 24;    // rows that share a load of keys; whole pair tiles
inline constexpr int64_t kTextBlock = 256;  // their scores take 26 KiB

// Row i is dim i of the keys, vector v those of sixteen rows of the text.
struct TextKeys {
  const float* p;
  int64_t stride;  // floats between the keys of sixteen rows and of the next
  void fetch(int64_t, int64_t) const {}
  Simd::F at(int64_t i, int64_t v) const { return Simd::load(p + v * stride + i * 16); }
};

// to[d][lane] = from[lane][d]; lanes from n on are zero. 16 x 16 values at a time: four times
// interleaving vectors i and i + 8 turns row r, column c into row c, column r.
static void store_text_keys(const float* from, int64_t stride, int64_t n, int64_t dims, float* to) {
  using S = Simd;
  int64_t d = 0;
  for (; d + 16 <= dims; d += 16) {
    S::F a[16], b[16];
    for (int64_t i = 0; i < 16; ++i) a[i] = i < n ? S::load(from + i * stride + d) : S::zero();
    for (int round = 0; round < 4; ++round) {
      for (int i = 0; i < 8; ++i) {
        b[2 * i] = S::zip_lo(a[i], a[i + 8]);
        b[2 * i + 1] = S::zip_hi(a[i], a[i + 8]);
      }
      for (int i = 0; i < 16; ++i) a[i] = b[i];
    }
    for (int64_t i = 0; i < 16; ++i) S::store(to + (d + i) * 16, a[i]);
  }
  for (; d < dims; ++d)
    for (int64_t i = 0; i < 16; ++i) to[d * 16 + i] = i < n ? from[i * stride + d] : 0.0f;
}

// Turns the dots of a row with n keys from number `first` on into scores, -inf where a key is
// hidden or past the text. Returns the maximum.
static inline float finish_text_scores(const TextArgs& args, int64_t head, int64_t row,
                                       int64_t first, int64_t n, float* s) {
  using S = Simd;
  alignas(64) static const float lanes[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  const S::F scale = S::set1(args.scale), ninf = S::set1(-__builtin_inff());
  const float reach = args.window > 0 ? static_cast<float>(args.window - 1) : __builtin_inff();
  const float end = static_cast<float>(first + n - 1 - row);
  const S::F low = S::set1(-reach), high = S::set1(reach < end ? reach : end);
  S::F top = ninf;
  for (int64_t i = 0; i < n; i += 16) {
    const int64_t ahead = first + i - row;
    // Whole numbers below 2^24: exact.
    const S::F distance = S::add(S::load(lanes), S::set1(static_cast<float>(ahead)));
    S::F x = S::mul(S::load(s + i), scale);
    if (args.softcap > 0.0f) x = softcap_lanes(x, S::set1(args.softcap));
    if (args.bias) x = S::add(x, distance_biases(args, head, ahead));
    if (args.slopes) x = S::fma(S::set1(-args.slopes[head]), S::abs(distance), x);
    if (args.window > 0 || i + 16 > n)
      x = S::where_less(distance, low, ninf, S::where_less(high, distance, ninf, x));
    S::store(s + i, x);
    top = S::max(x, top);
  }
  return S::reduce_max(top);
}

// Turns scores into weights exp(score - max); returns their sum.
static inline float weigh_text(int64_t n, float max, float* s) {
  using S = Simd;
  S::F sum = S::zero();
  for (int64_t i = 0; i < n; i += 16) {
    const S::F p = exp_nonpositive_lanes(S::sub(S::load(s + i), S::set1(max)));
    S::store(s + i, p);
    sum = S::add(sum, p);
  }
  return S::reduce_add(sum);
}

static inline float exp_of(float x) {
  float lanes[16];
  Simd::store(lanes, exp_nonpositive_lanes(Simd::set1(x)));
  return lanes[0];
}

// Up to kTextRows rows of a head.
class TextHead {
 public:
  TextHead(const TextArgs& args, int64_t row, int64_t n_rows, int64_t head)
      : args_(args),
        row_(row),
        n_rows_(n_rows),
        head_(head),
        kv_head_(head / (args.n_heads / args.n_kv_heads)) {
    for (int64_t r = 0; r < n_rows; ++r) m_[r] = -__builtin_inff(), l_[r] = 0.0f;
  }

  void run() {
    for (int64_t first = 0; first < args_.n; first += kTextBlock) {
      const int64_t n = smaller(kTextBlock, args_.n - first);
      if (args_.window > 0 &&
          (first - (row_ + n_rows_ - 1) >= args_.window || row_ - (first + n - 1) >= args_.window))
        continue;
      score(first, n);
      add_values(first, n);
    }
    for (int64_t r = 0; r < n_rows_; ++r) finish(r);
  }

 private:
  float* out(int64_t r) const {
    return args_.out + (row_ + r) * args_.out_stride + head_ * args_.value_dim;
  }

  void score(int64_t first, int64_t n) {
    const float* q[kTextRows];
    float* sums[kTextRows];
    for (int64_t r = 0; r < n_rows_; ++r) {
      q[r] = args_.q + (row_ + r) * args_.q_stride + head_ * args_.key_dim;
      sums[r] = scores_[r];
    }
    const int64_t stride = args_.n_kv_heads * args_.key_dim * 16;
    const float* keys = args_.k + first / 16 * stride + kv_head_ * args_.key_dim * 16;
    fma_pairs(n_rows_, q, TextKeys{keys, stride}, args_.key_dim, sums, true, (n + 15) / 16);
    for (int64_t r = 0; r < n_rows_; ++r) {
      const float mb = finish_text_scores(args_, head_, row_ + r, first, n, scores_[r]);
      const float old = m_[r], top = mb > old ? mb : old;
      fresh_[r] = l_[r] == 0.0f;
      if (top == -__builtin_inff()) {  // nothing is seen yet
        for (int64_t i = 0; i < n; i += 16) Simd::store(scores_[r] + i, Simd::zero());
        keep_[r] = 1.0f;
        continue;
      }
      keep_[r] = fresh_[r] ? 0.0f : exp_of(old - top);
      m_[r] = top;
      l_[r] = l_[r] * keep_[r] + weigh_text(n, top, scores_[r]);
    }
  }

  void add_values(int64_t first, int64_t n) {
    for (int64_t d = 0; d < args_.value_dim; d += kChunk) {
      const int64_t n_dims = smaller(kChunk, args_.value_dim - d);
      const float* weights[kTextRows];
      float* sums[kTextRows];
      for (int64_t r = 0; r < n_rows_; ++r) weights[r] = scores_[r], sums[r] = sums_[r];
      const float* values = args_.v + first * args_.v_stride + kv_head_ * args_.value_dim + d;
      fma_pairs(n_rows_, weights, ScratchRows{values, args_.v_stride}, n, sums, true,
                (n_dims + 15) / 16);
      for (int64_t r = 0; r < n_rows_; ++r) {
        float* to = out(r) + d;
        if (fresh_[r])
          map(sums_[r], sums_[r], to, n_dims, [](Simd::F a, Simd::F) { return a; });
        else
          map(to, sums_[r], to, n_dims,
              [k = Simd::set1(keep_[r])](Simd::F a, Simd::F b) { return Simd::fma(a, k, b); });
      }
    }
  }

  // A row sees itself, so l is 0 only if its scores are no numbers: then neither is the result.
  void finish(int64_t r) const {
    const Simd::F l = Simd::set1(l_[r] == 0.0f ? __builtin_nanf("") : l_[r]);
    map(out(r), out(r), out(r), args_.value_dim,
        [l](Simd::F a, Simd::F) { return Simd::div(a, l); });
  }

  const TextArgs& args_;
  const int64_t row_, n_rows_, head_, kv_head_;
  float m_[kTextRows], l_[kTextRows], keep_[kTextRows];
  bool fresh_[kTextRows];
  alignas(64) float scores_[kTextRows][kTextBlock + 16];
  alignas(64) float sums_[kTextRows][kChunk];
};

static void attend_text(const TextArgs& args, int64_t row_begin, int64_t row_end, int64_t head) {
  for (int64_t row = row_begin; row < row_end; row += kTextRows)
    TextHead(args, row, smaller(kTextRows, row_end - row), head).run();
}
