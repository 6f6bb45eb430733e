// Sixteen lanes on AArch64 with dot products (FEAT_DotProd): four registers per vector.
// Included by the isa.cpp files inside an unnamed namespace. scalar.h documents the vocabulary.
#pragma once

struct Simd {
  // Vectors that a kernel may keep in registers: of 32 / 4 = 8, two are left for operands.
  static constexpr int kAccumulators = 6;
  static constexpr int kParts = 1;
  static constexpr bool kFreeStart = false;
  using Part = Simd;

  struct F {
    float32x4_t a, b, c, d;
  };
  struct I {
    int32x4_t a, b, c, d;
  };
  struct B {
    uint8x16_t a, b, c, d;
  };

// The same for each register of one vector, of two, of one with a constant N.
#define PYFLOW_EACH_1(T, name, From, op) \
  static inline T name(From x) { return {op(x.a), op(x.b), op(x.c), op(x.d)}; }
#define PYFLOW_EACH_2(T, name, op)                                   \
  static inline T name(T x, T y) {                                   \
    return {op(x.a, y.a), op(x.b, y.b), op(x.c, y.c), op(x.d, y.d)}; \
  }
#define PYFLOW_EACH_N(T, name, op)               \
  template <int N>                               \
  static inline T name(T x) {                    \
    return {op(x.a), op(x.b), op(x.c), op(x.d)}; \
  }

  static inline F zero() { return set1(0.0f); }
  static inline F set1(float x) {
    const float32x4_t v = vdupq_n_f32(x);
    return {v, v, v, v};
  }
  static inline F load(const float* p) {
    return {vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)};
  }
  static inline void store(float* p, F x) {
    vst1q_f32(p, x.a);
    vst1q_f32(p + 4, x.b);
    vst1q_f32(p + 8, x.c);
    vst1q_f32(p + 12, x.d);
  }
  static inline float32x4_t from_half(uint16x4_t h) {
    return vcvt_f32_f16(vreinterpret_f16_u16(h));
  }
  static inline uint16x4_t to_half(float32x4_t x) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); }
  static inline F load_f16(const uint16_t* p) {
    return {from_half(vld1_u16(p)), from_half(vld1_u16(p + 4)), from_half(vld1_u16(p + 8)),
            from_half(vld1_u16(p + 12))};
  }
  static inline void store_f16(uint16_t* p, F x) {
    vst1_u16(p, to_half(x.a));
    vst1_u16(p + 4, to_half(x.b));
    vst1_u16(p + 8, to_half(x.c));
    vst1_u16(p + 12, to_half(x.d));
  }
  static inline F set1_f16(const uint16_t* p) {
    const float32x4_t v = from_half(vdup_n_u16(*p));
    return {v, v, v, v};
  }
  static inline float32x4_t from_bfloat(const uint16_t* p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16));
  }
  static inline F load_bf16(const uint16_t* p) {
    return {from_bfloat(p), from_bfloat(p + 4), from_bfloat(p + 8), from_bfloat(p + 12)};
  }
  static inline void load_e4m3(const uint8_t* p, F (&w)[4]) {
    const auto halves = [](uint8x8_t codes) {  // with the sign in the exponent's top bit too
      const int16x8_t shifted = vshlq_n_s16(vmovl_s8(vreinterpret_s8_u8(codes)), 7);
      return vandq_u16(vreinterpretq_u16_s16(shifted), vdupq_n_u16(0xbf80));
    };
    for (int i = 0; i < 2; ++i) {
      const uint8x16x2_t pairs = vld2q_u8(p + 32 * i);
      for (int t = 0; t < 2; ++t) {
        const uint16x8_t lo = halves(vget_low_u8(pairs.val[t])),
                         hi = halves(vget_high_u8(pairs.val[t]));
        w[2 * i + t] = {from_half(vget_low_u16(lo)), from_half(vget_high_u16(lo)),
                        from_half(vget_low_u16(hi)), from_half(vget_high_u16(hi))};
      }
    }
  }
  static inline float32x4_t picked16(uint8x16x4_t table, int32x4_t index) {
    const uint32x4_t low = vandq_u32(vreinterpretq_u32_s32(index), vdupq_n_u32(15)),
                     bytes = vmlaq_n_u32(vdupq_n_u32(0x03020100), low, 0x04040404);
    return vreinterpretq_f32_u8(vqtbl4q_u8(table, vreinterpretq_u8_u32(bytes)));
  }
  static inline F pick16(const float* table, I i) {
    const auto* p = reinterpret_cast<const uint8_t*>(table);
    const uint8x16x4_t t = {{vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)}};
    return {picked16(t, i.a), picked16(t, i.b), picked16(t, i.c), picked16(t, i.d)};
  }
  static inline F load_i8f(const int8_t* p) { return to_f(load_i8(p)); }
  PYFLOW_EACH_2(F, add, vaddq_f32)
  PYFLOW_EACH_2(F, sub, vsubq_f32)
  PYFLOW_EACH_2(F, mul, vmulq_f32)
  PYFLOW_EACH_2(F, div, vdivq_f32)
  static inline F fma(F x, F y, F z) {
    return {vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c),
            vfmaq_f32(z.d, x.d, y.d)};
  }
  static inline F fnma(F x, F y, F z) {
    return {vfmsq_f32(z.a, x.a, y.a), vfmsq_f32(z.b, x.b, y.b), vfmsq_f32(z.c, x.c, y.c),
            vfmsq_f32(z.d, x.d, y.d)};
  }
  // The machine's own max and min return a not-a-number wherever they meet one; these do not.
  static inline float32x4_t larger(float32x4_t x, float32x4_t y) {
    return vbslq_f32(vcgtq_f32(x, y), x, y);
  }
  static inline float32x4_t smaller(float32x4_t x, float32x4_t y) {
    return vbslq_f32(vcltq_f32(x, y), x, y);
  }
  PYFLOW_EACH_2(F, max, larger)
  PYFLOW_EACH_2(F, min, smaller)
  PYFLOW_EACH_1(F, abs, F, vabsq_f32)
  static inline F where_less(F x, F y, F yes, F no) {
    return {
        vbslq_f32(vcltq_f32(x.a, y.a), yes.a, no.a), vbslq_f32(vcltq_f32(x.b, y.b), yes.b, no.b),
        vbslq_f32(vcltq_f32(x.c, y.c), yes.c, no.c), vbslq_f32(vcltq_f32(x.d, y.d), yes.d, no.d)};
  }
  PYFLOW_EACH_1(F, swap_pairs, F, vrev64q_f32)
  static inline float32x4_t picked(float32x4_t x, int32x4_t lanes) {
    const uint32x4_t bytes =
        vmlaq_n_u32(vdupq_n_u32(0x03020100), vreinterpretq_u32_s32(lanes), 0x04040404);
    return vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(x), vreinterpretq_u8_u32(bytes)));
  }
  static inline F permute4(F x, I lanes) {
    return {picked(x.a, lanes.a), picked(x.b, lanes.b), picked(x.c, lanes.c), picked(x.d, lanes.d)};
  }
  static inline F zip_lo(F x, F y) {
    return {vzip1q_f32(x.a, y.a), vzip2q_f32(x.a, y.a), vzip1q_f32(x.b, y.b), vzip2q_f32(x.b, y.b)};
  }
  static inline F zip_hi(F x, F y) {
    return {vzip1q_f32(x.c, y.c), vzip2q_f32(x.c, y.c), vzip1q_f32(x.d, y.d), vzip2q_f32(x.d, y.d)};
  }
  static inline float reduce_add(F x) {
    const float32x4_t v = vaddq_f32(vaddq_f32(x.a, x.c), vaddq_f32(x.b, x.d));
    const float32x2_t w = vadd_f32(vget_low_f32(v), vget_high_f32(v));
    return vget_lane_f32(w, 0) + vget_lane_f32(w, 1);
  }
  static inline float reduce_max(F x) {
    float32x4_t v = larger(larger(x.a, x.c), larger(x.b, x.d));
    v = larger(v, vextq_f32(v, v, 2));
    return vgetq_lane_f32(larger(v, vextq_f32(v, v, 1)), 0);
  }

  static inline I izero() { return iset1(0); }
  static inline I iset1(int32_t x) {
    const int32x4_t v = vdupq_n_s32(x);
    return {v, v, v, v};
  }
  static inline I load_i32(const int32_t* p) {
    return {vld1q_s32(p), vld1q_s32(p + 4), vld1q_s32(p + 8), vld1q_s32(p + 12)};
  }
  static inline void store_i32(int32_t* p, I x) {
    vst1q_s32(p, x.a);
    vst1q_s32(p + 4, x.b);
    vst1q_s32(p + 8, x.c);
    vst1q_s32(p + 12, x.d);
  }
  static inline I widen(int16x8_t lo, int16x8_t hi) {
    return {vmovl_s16(vget_low_s16(lo)), vmovl_high_s16(lo), vmovl_s16(vget_low_s16(hi)),
            vmovl_high_s16(hi)};
  }
  static inline I load_i8(const int8_t* p) {
    const int8x16_t v = vld1q_s8(p);
    return widen(vmovl_s8(vget_low_s8(v)), vmovl_high_s8(v));
  }
  static inline I load_u8(const uint8_t* p) {
    const uint8x16_t v = vld1q_u8(p);
    return widen(vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(v))),
                 vreinterpretq_s16_u16(vmovl_high_u8(v)));
  }
  static inline void store_i8(int8_t* p, I x) {
    const int16x8_t lo = vcombine_s16(vmovn_s32(x.a), vmovn_s32(x.b));
    const int16x8_t hi = vcombine_s16(vmovn_s32(x.c), vmovn_s32(x.d));
    vst1q_s8(p, vcombine_s8(vmovn_s16(lo), vmovn_s16(hi)));
  }
  PYFLOW_EACH_2(I, iadd, vaddq_s32)
  PYFLOW_EACH_2(I, isub, vsubq_s32)
  PYFLOW_EACH_2(I, imul, vmulq_s32)
  PYFLOW_EACH_2(I, iand, vandq_s32)
  PYFLOW_EACH_2(I, ior, vorrq_s32)

// To the right by an operator: N may be 0, which the intrinsics refuse.
#define PYFLOW_OP(x) vshlq_n_s32(x, N)
  PYFLOW_EACH_N(I, shl, PYFLOW_OP)
#undef PYFLOW_OP
#define PYFLOW_OP(x) vreinterpretq_s32_u32(vreinterpretq_u32_s32(x) >> N)
  PYFLOW_EACH_N(I, shr, PYFLOW_OP)
#undef PYFLOW_OP
#define PYFLOW_OP(x) ((x) >> N)
  PYFLOW_EACH_N(I, sar, PYFLOW_OP)
#undef PYFLOW_OP
  PYFLOW_EACH_1(F, to_f, I, vcvtq_f32_s32)
  PYFLOW_EACH_1(I, to_i, F, vcvtnq_s32_f32)
  PYFLOW_EACH_1(F, bits_f, I, vreinterpretq_f32_s32)
  PYFLOW_EACH_1(I, bits_i, F, vreinterpretq_s32_f32)

  static inline B bload(const uint8_t* p) {
    return {vld1q_u8(p), vld1q_u8(p + 16), vld1q_u8(p + 32), vld1q_u8(p + 48)};
  }
  static inline B bset1(uint8_t x) {
    const uint8x16_t v = vdupq_n_u8(x);
    return {v, v, v, v};
  }
  PYFLOW_EACH_2(B, band, vandq_u8)
  PYFLOW_EACH_2(B, bor, vorrq_u8)
  static inline B bmerge(B x, B mask, B y) { return bor(band(x, mask), y); }
#define PYFLOW_OP(x) vreinterpretq_u8_u16(vreinterpretq_u16_u8(x) >> N)
  PYFLOW_EACH_N(B, bshr, PYFLOW_OP)
#undef PYFLOW_OP
#define PYFLOW_OP(x) vreinterpretq_u8_u16(vshlq_n_u16(vreinterpretq_u16_u8(x), N))
  PYFLOW_EACH_N(B, bshl, PYFLOW_OP)
#undef PYFLOW_OP
  PYFLOW_EACH_2(B, bavg, vrhaddq_u8)
  // The instruction doubles: 2979 / 2^7 = 256 / 11 + 0.0007, and for c up to 127 the whole parts of
  // both products are the same.
  template <int T>
  static inline uint8x16_t elevenths(uint8x16_t x) {
    int16x8_t c = vreinterpretq_s16_u8(x);
    if constexpr (T == 0) c = vshlq_n_s16(c, 8);
    c = vqdmulhq_n_s16(vandq_s16(c, vdupq_n_s16(0x7f00)), 2979);
    return vandq_u8(vreinterpretq_u8_s16(c), vdupq_n_u8(15));
  }
  template <int T>
  static inline B belevenths(B x) {
    return {elevenths<T>(x.a), elevenths<T>(x.b), elevenths<T>(x.c), elevenths<T>(x.d)};
  }
  static inline B lut16(const int8_t* table, B index) {
    const uint8x16_t t = vreinterpretq_u8_s8(vld1q_s8(table));
    return {vqtbl1q_u8(t, index.a), vqtbl1q_u8(t, index.b), vqtbl1q_u8(t, index.c),
            vqtbl1q_u8(t, index.d)};
  }
  // Both factors are signed here, which weights up to 127 do not notice.
  static inline I dot_s8(I acc, B w, const int8_t* a) {
    int32_t quad;
    __builtin_memcpy(&quad, a, 4);
    return dot_lane<0>(acc, w, vreinterpretq_s8_s32(vdupq_n_s32(quad)));
  }
  static inline I dot_u7(I acc, B w, const int8_t* a) { return dot_s8(acc, w, a); }
  static inline I s8_start(int32_t, int32_t from) { return iset1(from); }
  static inline B s8_prepare(B w) { return w; }
  // Against the G-th four of sixteen activations, which the instruction broadcasts itself.
  template <int G>
  static inline I dot_lane(I acc, B w, int8x16_t q) {
    return {vdotq_laneq_s32(acc.a, vreinterpretq_s8_u8(w.a), q, G),
            vdotq_laneq_s32(acc.b, vreinterpretq_s8_u8(w.b), q, G),
            vdotq_laneq_s32(acc.c, vreinterpretq_s8_u8(w.c), q, G),
            vdotq_laneq_s32(acc.d, vreinterpretq_s8_u8(w.d), q, G)};
  }
  template <int Max>
  static inline I dot16_s(I acc, const B (&w)[4], const int8_t* a) {
    const int8x16_t q = vld1q_s8(a);
    acc = dot_lane<0>(acc, w[0], q);
    acc = dot_lane<1>(acc, w[1], q);
    acc = dot_lane<2>(acc, w[2], q);
    return dot_lane<3>(acc, w[3], q);
  }
  template <int Max>
  static inline I dot16_u(I acc, const B (&w)[4], const int8_t* a) {
    static_assert(Max <= 127);
    return dot16_s<128>(acc, w, a);
  }

  static inline void prefetch(const void* p) { __builtin_prefetch(p, 0, 3); }
  static inline void prefetch_far(const void* p) { __builtin_prefetch(p, 0, 2); }
#undef PYFLOW_EACH_1
#undef PYFLOW_EACH_2
#undef PYFLOW_EACH_N
};
