// Activations to int8, per row and 64 k.

// Below this a block counts as zeros: 127 / max would leave f32's range for max < 3.8e-37.
static constexpr float kLeastMaximum = 0x1p-120f;

// Sixty-four floats. q = round to nearest even of x * (127 / max |x|). A block with an infinity or
// a NaN cannot be scaled: its scale is NaN, so that every output that meets it says so.
static inline void quantize_block(const float* x, ActBlock& out) {
  using S = Simd;
  S::F v[4], largest = S::zero(), poison = S::zero();
  for (int i = 0; i < 4; ++i) {
    v[i] = S::load(x + 16 * i);
    largest = S::max(S::abs(v[i]), largest);
    poison = S::fma(v[i], S::zero(), poison);  // 0, or NaN where v is not finite
  }
  const bool finite = S::reduce_add(poison) == 0.0f;
  const float max = finite ? S::reduce_max(largest) : 0.0f;
  const bool zeros = max < kLeastMaximum;
  out.scale = !finite ? __builtin_nanf("") : zeros ? 0.0f : max / 127.0f;
  const S::F inverse = S::set1(zeros ? 0.0f : 127.0f / max);
  float sum16[4];
  for (int i = 0; i < 4; ++i) {
    const S::I q = finite ? S::to_i(S::mul(v[i], inverse)) : S::izero();
    S::store_i8(out.q + 16 * i, q);
    sum16[i] = S::reduce_add(S::to_f(q));  // |sum| <= 2032: exact
    out.sum16[i] = static_cast<int16_t>(sum16[i]);
  }
  for (int i = 0; i < 2; ++i) {
    out.fsum32[i] = sum16[2 * i] + sum16[2 * i + 1];
    out.sum32[i] = static_cast<int32_t>(out.fsum32[i]);
  }
  out.unused = 0;
}

static void quantize_row(const float* x, int64_t k, ActBlock* out, int64_t stride) {
  const int64_t whole = k / kActBlock, tail = k % kActBlock;
  for (int64_t b = 0; b < whole; ++b) quantize_block(x + b * kActBlock, out[b * stride]);
  if (tail != 0) {
    float padded[kActBlock] = {};
    for (int64_t i = 0; i < tail; ++i) padded[i] = x[whole * kActBlock + i];
    quantize_block(padded, out[whole * stride]);
  }
}
