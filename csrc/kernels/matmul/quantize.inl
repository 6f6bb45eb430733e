// Quantizes activations to int8, with a scale per row and 32 k.

// Maxima below this count as zero: for max < 3.8e-37, 127 / max exceeds the range of f32.
static constexpr float kLeastMaximum = 0x1p-120f;

// Quantizes thirty-two floats, half h of a block: q = x * (127 / max |x|), to nearest even. If one
// is infinite or a NaN, the scale is NaN, so that it shows in every output.
static inline void quantize_half(const float* x, int h, ActBlock& out) {
  using S = Simd;
  const S::F v[2] = {S::load(x), S::load(x + 16)};
  const S::F poison =  // 0, or NaN where x is not finite
      S::fma(v[1], S::zero(), S::mul(v[0], S::zero()));
  const bool finite = S::reduce_add(poison) == 0.0f;
  const float max = finite ? S::reduce_max(S::max(S::abs(v[0]), S::abs(v[1]))) : 0.0f;
  const bool zeros = max < kLeastMaximum;
  out.scale[h] = !finite ? __builtin_nanf("") : zeros ? 0.0f : max / 127.0f;
  const S::F inverse = S::set1(zeros ? 0.0f : 127.0f / max);
  float sum16[2];
  for (int i = 0; i < 2; ++i) {
    const S::I q = finite ? S::to_i(S::mul(v[i], inverse)) : S::izero();
    S::store_i8(out.q + 32 * h + 16 * i, q);
    sum16[i] = S::reduce_add(S::to_f(q));  // |sum| <= 2032: exact
    out.sum16[2 * h + i] = static_cast<int16_t>(sum16[i]);
  }
  out.fsum32[h] = sum16[0] + sum16[1];
  out.sum32[h] = static_cast<int32_t>(out.fsum32[h]);
}

static inline void quantize_block(const float* x, ActBlock& out) {
  quantize_half(x, 0, out);
  quantize_half(x + 32, 1, out);
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
