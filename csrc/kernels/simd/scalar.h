// The vocabulary that kernels are written in, in plain C++: sixteen 32-bit lanes, or 64 bytes as
// sixteen groups of four. This file is the reference for what each word means; the others here
// give the same results, bit for bit. Included inside an unnamed namespace.
//
//   F  16 f32 lanes          fma(a,b,c) = a*b + c, fnma(a,b,c) = -a*b + c, one rounding each
//      zip_lo, zip_hi interleave the lower, upper halves: a0 b0 a1 b1 ...
//      permute4(a,lanes) picks one of four lanes, by its number 0 to 3 among them
//      load_e4m3(p,w) 64 bytes, line of four k (quant/formats/scaled/e4m3.h), as f16 bits
//      pick16(table,i) is one of sixteen floats at a 64-byte border, by the low four bits of i
//      where_less(a,b,yes,no) picks per lane; max(a,b) is b where a lane is not a number
//   I  16 i32 lanes          to_i rounds to nearest even, in range only
//      shr is logical, sar arithmetic
//   B  64 bytes              byte 4*lane + t; bshl/bshr shift 16-bit pairs: mask the result
//      bmerge(a, mask, b) = (a & mask) | b
//      bavg(a,b) = (a + b + 1) / 2 of bytes
//      belevenths<T> of 16-bit pairs: c, the low seven bits of byte T, becomes the low nibble of
//      256 * c / 11 and, in the byte above, c / 11
//
// reduce_add has a fixed shape: lane i + lane i+8, then +4, +2, +1.
// dot_u7(acc, w, a): acc[lane] += sum over t<4 of w[4*lane+t] * a[t], w in 0..127, a in -127..127.
// dot_s8 the same for w in -128..127, on w = s8_prepare(w) and an accumulator that began at
// s8_start(sum of all a it will meet, from), which ends at from + the products. dot16_u and dot16_s
// do four such groups, k 0..15: w[0..3] against a[0..15]; no w is above Max, nor for dot16_s below
// -Max, which a machine without VNNI turns into speed. kFreeStart: any start costs the same.
//
// Part: the words of a product (matmul.inl) for one of kParts registers of a vector, lanes
// ascending; where there are two, Part::of<P>(x) takes one out of a vector.
#pragma once

// One word a line, which clang-format would spread over five.
// clang-format off

struct Simd {
  static constexpr int kAccumulators = 1;  // vectors that a kernel may keep in registers
  static constexpr int kParts = 1;
  static constexpr bool kFreeStart = false;
  using Part = Simd;

  struct F {
    float v[16];
  };
  struct I {
    int32_t v[16];
  };
  struct B {
    uint8_t v[64];
  };
#define PYFLOW_LANES(expr)              \
  for (int i = 0; i < 16; ++i) r.v[i] = (expr); \
  return r
#define PYFLOW_BYTES(expr)              \
  for (int i = 0; i < 64; ++i) r.v[i] = static_cast<uint8_t>(expr); \
  return r

  static inline F zero() { return F{}; }
  static inline F set1(float x) { F r; PYFLOW_LANES(x); }
  static inline F load(const float* p) { F r; PYFLOW_LANES(p[i]); }
  static inline void store(float* p, F a) {
    for (int i = 0; i < 16; ++i) p[i] = a.v[i];
  }
  static inline float half(uint16_t h) {
    const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16, e = (h >> 10) & 31, m = h & 1023;
    if (e == 0) {
      const float f = static_cast<float>(m) * 0x1p-24f;
      return sign ? -f : f;
    }
    const uint32_t bits = sign | (e == 31 ? 0x7f800000u : (e + 112) << 23) | (m << 13);
    float f;
    __builtin_memcpy(&f, &bits, 4);
    return f;
  }
  static inline uint16_t to_half(float f) {
    uint32_t x;
    __builtin_memcpy(&x, &f, 4);
    const uint32_t sign = (x >> 16) & 0x8000, a = x & 0x7fffffff;
    if (a > 0x7f800000) return static_cast<uint16_t>(sign | 0x7e00 | ((a >> 13) & 0x3ff));
    if (a >= 0x477ff000) return static_cast<uint16_t>(sign | 0x7c00);
    if (a < 0x38800000) {  // subnormal: adding 0.5 lines the mantissa up with f16's, rounding once
      float g;
      __builtin_memcpy(&g, &a, 4);
      g += 0.5f;
      uint32_t b;
      __builtin_memcpy(&b, &g, 4);
      return static_cast<uint16_t>(sign | (b - 0x3f000000));
    }
    return static_cast<uint16_t>(sign | ((a - 0x38000000 + 0xfff + ((a >> 13) & 1)) >> 13));
  }
  static inline F load_f16(const uint16_t* p) { F r; PYFLOW_LANES(half(p[i])); }
  static inline void store_f16(uint16_t* p, F a) {
    for (int i = 0; i < 16; ++i) p[i] = to_half(a.v[i]);
  }
  static inline float from_bits(uint32_t b) {
    float f;
    __builtin_memcpy(&f, &b, 4);
    return f;
  }
  static inline uint32_t to_bits(float f) {
    uint32_t b;
    __builtin_memcpy(&b, &f, 4);
    return b;
  }
  static inline F set1_f16(const uint16_t* p) { return set1(half(*p)); }
  static inline F load_bf16(const uint16_t* p) {
    F r;
    PYFLOW_LANES(from_bits(static_cast<uint32_t>(p[i]) << 16));
  }
  static inline void load_e4m3(const uint8_t* p, F (&w)[4]) {
    for (int t = 0; t < 4; ++t)
      for (int i = 0; i < 16; ++i) {
        const int c = p[t / 2 * 32 + 2 * i + t % 2];
        w[t].v[i] = half(static_cast<uint16_t>((c & 0x80) << 8 | (c & 0x7f) << 7));
      }
  }
  static inline F pick16(const float* table, I index) { F r; PYFLOW_LANES(table[index.v[i] & 15]); }
  static inline F load_i8f(const int8_t* p) { F r; PYFLOW_LANES(static_cast<float>(p[i])); }
  static inline F add(F a, F b) { F r; PYFLOW_LANES(a.v[i] + b.v[i]); }
  static inline F sub(F a, F b) { F r; PYFLOW_LANES(a.v[i] - b.v[i]); }
  static inline F mul(F a, F b) { F r; PYFLOW_LANES(a.v[i] * b.v[i]); }
  static inline F div(F a, F b) { F r; PYFLOW_LANES(a.v[i] / b.v[i]); }
  static inline F fma(F a, F b, F c) { F r; PYFLOW_LANES(__builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
  static inline F fnma(F a, F b, F c) { F r; PYFLOW_LANES(__builtin_fmaf(-a.v[i], b.v[i], c.v[i])); }
  static inline F max(F a, F b) { F r; PYFLOW_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
  static inline F min(F a, F b) { F r; PYFLOW_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
  static inline F abs(F a) { F r; PYFLOW_LANES(from_bits(to_bits(a.v[i]) & 0x7fffffff)); }
  static inline F where_less(F a, F b, F yes, F no) {
    F r;
    PYFLOW_LANES(a.v[i] < b.v[i] ? yes.v[i] : no.v[i]);
  }
  static inline F swap_pairs(F a) { F r; PYFLOW_LANES(a.v[i ^ 1]); }
  static inline F permute4(F a, I lanes) { F r; PYFLOW_LANES(a.v[(i & ~3) + lanes.v[i]]); }
  static inline F zip_lo(F a, F b) { F r; PYFLOW_LANES(i % 2 ? b.v[i / 2] : a.v[i / 2]); }
  static inline F zip_hi(F a, F b) { F r; PYFLOW_LANES(i % 2 ? b.v[8 + i / 2] : a.v[8 + i / 2]); }
  static inline float reduce_add(F a) {
    for (int n = 8; n; n /= 2)
      for (int i = 0; i < n; ++i) a.v[i] += a.v[i + n];
    return a.v[0];
  }
  static inline float reduce_max(F a) {
    for (int n = 8; n; n /= 2)
      for (int i = 0; i < n; ++i) a.v[i] = a.v[i] > a.v[i + n] ? a.v[i] : a.v[i + n];
    return a.v[0];
  }

  static inline I izero() { return I{}; }
  static inline I iset1(int32_t x) { I r; PYFLOW_LANES(x); }
  static inline I load_i32(const int32_t* p) { I r; PYFLOW_LANES(p[i]); }
  static inline void store_i32(int32_t* p, I a) {
    for (int i = 0; i < 16; ++i) p[i] = a.v[i];
  }
  static inline I load_i8(const int8_t* p) { I r; PYFLOW_LANES(p[i]); }
  static inline I load_u8(const uint8_t* p) { I r; PYFLOW_LANES(p[i]); }
  static inline void store_i8(int8_t* p, I a) {
    for (int i = 0; i < 16; ++i) p[i] = static_cast<int8_t>(a.v[i]);
  }
  static inline uint32_t u(int32_t x) { return static_cast<uint32_t>(x); }
  static inline I iadd(I a, I b) { I r; PYFLOW_LANES(static_cast<int32_t>(u(a.v[i]) + u(b.v[i]))); }
  static inline I isub(I a, I b) { I r; PYFLOW_LANES(static_cast<int32_t>(u(a.v[i]) - u(b.v[i]))); }
  static inline I imul(I a, I b) { I r; PYFLOW_LANES(static_cast<int32_t>(u(a.v[i]) * u(b.v[i]))); }
  static inline I iand(I a, I b) { I r; PYFLOW_LANES(a.v[i] & b.v[i]); }
  static inline I ior(I a, I b) { I r; PYFLOW_LANES(a.v[i] | b.v[i]); }
  template <int N>
  static inline I shl(I a) { I r; PYFLOW_LANES(static_cast<int32_t>(u(a.v[i]) << N)); }
  template <int N>
  static inline I shr(I a) { I r; PYFLOW_LANES(static_cast<int32_t>(u(a.v[i]) >> N)); }
  template <int N>
  static inline I sar(I a) { I r; PYFLOW_LANES(a.v[i] >> N); }
  static inline F to_f(I a) { F r; PYFLOW_LANES(static_cast<float>(a.v[i])); }
  static inline I to_i(F a) { I r; PYFLOW_LANES(static_cast<int32_t>(__builtin_rintf(a.v[i]))); }
  static inline F bits_f(I a) { F r; PYFLOW_LANES(from_bits(u(a.v[i]))); }
  static inline I bits_i(F a) { I r; PYFLOW_LANES(static_cast<int32_t>(to_bits(a.v[i]))); }

  static inline B bload(const uint8_t* p) { B r; PYFLOW_BYTES(p[i]); }
  static inline B bset1(uint8_t x) { B r; PYFLOW_BYTES(x); }
  static inline B band(B a, B b) { B r; PYFLOW_BYTES(a.v[i] & b.v[i]); }
  static inline B bor(B a, B b) { B r; PYFLOW_BYTES(a.v[i] | b.v[i]); }
  static inline B bmerge(B a, B mask, B b) { B r; PYFLOW_BYTES((a.v[i] & mask.v[i]) | b.v[i]); }
  template <int N>
  static inline B bshr(B a) {
    B r;
    PYFLOW_BYTES((i % 2 ? a.v[i] : a.v[i] | a.v[i + 1] << 8) >> N);
  }
  template <int N>
  static inline B bshl(B a) {
    B r;
    PYFLOW_BYTES(i % 2 ? (a.v[i - 1] | a.v[i] << 8) << N >> 8 : a.v[i] << N);
  }
  static inline B bavg(B a, B b) { B r; PYFLOW_BYTES((a.v[i] + b.v[i] + 1) / 2); }
  template <int T>
  static inline B belevenths(B a) {
    B r;
    PYFLOW_BYTES(256 * (a.v[i / 2 * 2 + T] & 127) / 11 >> i % 2 * 8 & 15);
  }
  static inline B lut16(const int8_t* table, B index) { B r; PYFLOW_BYTES(table[index.v[i] & 15]); }
  static inline I dot_u7(I acc, B w, const int8_t* a) {
    for (int i = 0; i < 16; ++i)
      for (int t = 0; t < 4; ++t) acc.v[i] += w.v[4 * i + t] * a[t];
    return acc;
  }
  static inline I s8_start(int32_t, int32_t from) { return iset1(from); }
  static inline B s8_prepare(B w) { return w; }
  static inline I dot_s8(I acc, B w, const int8_t* a) {
    for (int i = 0; i < 16; ++i)
      for (int t = 0; t < 4; ++t) acc.v[i] += static_cast<int8_t>(w.v[4 * i + t]) * a[t];
    return acc;
  }
  template <int Max>
  static inline I dot16_u(I acc, const B (&w)[4], const int8_t* a) {
    for (int g = 0; g < 4; ++g) acc = dot_u7(acc, w[g], a + 4 * g);
    return acc;
  }
  template <int Max>
  static inline I dot16_s(I acc, const B (&w)[4], const int8_t* a) {
    for (int g = 0; g < 4; ++g) acc = dot_s8(acc, w[g], a + 4 * g);
    return acc;
  }

  static inline void prefetch(const void*) {}
  static inline void prefetch_far(const void*) {}
#undef PYFLOW_LANES
#undef PYFLOW_BYTES
};
