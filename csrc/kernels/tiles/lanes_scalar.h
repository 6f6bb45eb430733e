// Words that only tiles need, in plain C++, on the lanes of simd/scalar.h. Included inside an
// unnamed namespace.
//
//   as_i(b)                the bytes of a lane as its 32 bits
//   bxor, bsub             of bytes
//   imerge(a, mask, b)     (a & mask) | b
//   high_halves(a, b)      a's upper 16 bits below those of b
#pragma once

// Kernels are inlined whole and loops unrolled where speed matters. Here GCC would take minutes for
// the one, and the other would take a megabyte.
#define PYFLOW_WHOLE
#define PYFLOW_UNROLL(n)

struct Lanes : Simd {
  static inline I as_i(B a) {
    I r;
    __builtin_memcpy(&r, &a, sizeof r);
    return r;
  }
  static inline B bxor(B a, B b) {
    for (int i = 0; i < 64; ++i) a.v[i] ^= b.v[i];
    return a;
  }
  static inline B bsub(B a, B b) {
    for (int i = 0; i < 64; ++i) a.v[i] = static_cast<uint8_t>(a.v[i] - b.v[i]);
    return a;
  }
  static inline I imerge(I a, I mask, I b) { return ior(iand(a, mask), b); }
  static inline I high_halves(I a, I b) {
    return imerge(b, iset1(static_cast<int32_t>(0xffff0000)), shr<16>(a));
  }
  static inline B s8_prepare(B w) { return w; }  // tiles take signed bytes as they are
};
