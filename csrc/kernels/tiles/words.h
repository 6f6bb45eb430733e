// The vocabulary of tiles, twice: one instruction a word, and by the emulator. Included inside an
// unnamed namespace.
//
//   config(c)            sets the sizes of all tiles and zeroes them; release() ends their use
//   load<T>(p, stride)   rows of tile T lie `stride` bytes apart; bytes outside of its size become 0
//   stream<T>            the same for what is read once and shall not stay in the nearest cache
//   store<T>(p, stride)
//   dot_s8<C, A, B>      C[m][n] += sum over k of A[m][k] * B[k / 4][4 n + k % 4], modulo 2^32;
//                        both signed. dot_su8: B unsigned
//   dot_bf16<C, A, B>    C[m][n] += the same of bf16, B[k / 2][2 n + k % 2]; emulator.h has its
//                        roundings
//
// The compiler is never told of tile registers: it must not allocate them, and GCC 12's intrinsics
// let stores move past loads of tiles. Hence assembly, with all memory clobbered.
#pragma once

struct Hardware {
  static inline void config(const TileConfig& c) {
    __asm__ volatile("ldtilecfg %0" ::"m"(c) : "memory");
  }
  static inline void release() { __asm__ volatile("tilerelease" ::: "memory"); }
  template <int T>
  static inline void zero() {
    __asm__ volatile("tilezero %%tmm%c0" ::"i"(T));
  }
  template <int T>
  static inline void load(const void* p, int64_t stride) {
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  static inline void stream(const void* p, int64_t stride) {
    __asm__ volatile("tileloaddt1 (%0,%1,1), %%tmm%c2" ::"r"(p), "r"(stride), "i"(T) : "memory");
  }
  template <int T>
  static inline void store(void* p, int64_t stride) {
    __asm__ volatile("tilestored %%tmm%c2, (%0,%1,1)" ::"r"(p), "r"(stride), "i"(T) : "memory");
  }
  template <int C, int A, int B>
  static inline void dot_s8() {
    __asm__ volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
  template <int C, int A, int B>
  static inline void dot_su8() {
    __asm__ volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
  template <int C, int A, int B>
  static inline void dot_bf16() {
    __asm__ volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(C), "i"(A), "i"(B));
  }
};

struct Emulated {
  static inline void config(const TileConfig& c) { emulator::config(c); }
  static inline void release() { emulator::release(); }
  template <int T>
  static inline void zero() {
    emulator::zero(T);
  }
  template <int T>
  static inline void load(const void* p, int64_t stride) {
    emulator::load(T, p, stride);
  }
  template <int T>
  static inline void stream(const void* p, int64_t stride) {
    emulator::load(T, p, stride);
  }
  template <int T>
  static inline void store(void* p, int64_t stride) {
    emulator::store(T, p, stride);
  }
  template <int C, int A, int B>
  static inline void dot_s8() {
    emulator::dot_s8(C, A, B);
  }
  template <int C, int A, int B>
  static inline void dot_su8() {
    emulator::dot_su8(C, A, B);
  }
  template <int C, int A, int B>
  static inline void dot_bf16() {
    emulator::dot_bf16(C, A, B);
  }
};
