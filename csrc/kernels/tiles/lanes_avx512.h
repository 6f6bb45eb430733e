// Words that only tiles need, on the lanes of simd/avx512.h. Included inside an unnamed namespace;
// lanes_scalar.h documents them.
#pragma once

#define PYFLOW_WHOLE [[gnu::flatten]]
#define PYFLOW_PRAGMA(text) _Pragma(#text)
#define PYFLOW_UNROLL(n) PYFLOW_PRAGMA(GCC unroll n)

struct Lanes : Simd {
  static inline I as_i(B a) { return a; }
  static inline B bsub(B a, B b) { return _mm512_sub_epi8(a, b); }
  static inline I imerge(I a, I mask, I b) { return _mm512_ternarylogic_epi32(a, mask, b, 0xea); }
  static inline I high_halves(I a, I b) {
    const I down = _mm512_set4_epi32(0x0f0e, 0x0b0a, 0x0706, 0x0302);
    return _mm512_mask_blend_epi16(0xaaaaaaaa, _mm512_shuffle_epi8(a, down), b);
  }
  static inline B s8_prepare(B w) { return w; }  // tiles take signed bytes as they are
};
