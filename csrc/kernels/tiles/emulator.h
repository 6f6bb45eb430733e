// The tiles of AMX in software, bit for bit, for tests on any CPU. Each thread has its own. What
// the hardware would refuse (tiles that are not configured or do not fit together) ends the
// process.
//
// Sums of bf16, as an AMX CPU gave them for all kinds of bit patterns and as the Intel SDM has it
// (TDPBF16PS):
//
//   even = odd = +0
//   for each pair of k, ascending:  even = fma(A[m][2k], B[k][2n], even)
//                                   odd = fma(A[m][2k + 1], B[k][2n + 1], odd)
//   C[m][n] = C[m][n] + (even + odd)
//
// Each is rounded once to f32, to nearest even; MXCSR counts for nothing. Subnormal inputs count as
// zeros of their sign. Results below 2^-126 become zeros of their sign after rounding to 24 bits of
// an unbounded exponent: 2^-126 - 2^-151 becomes 2^-126. A result is the first of a, b, c of a * b +
// c that is a NaN, made quiet, even before odd, but C before both; without one an invalid operation
// gives 0xffc00000.
#pragma once

#include <cstdint>

#include "kernels/tiles/config.h"

namespace pyflow::emulator {

void config(const TileConfig& config);
void release();
void zero(int tile);
void load(int tile, const void* p, int64_t stride);
void store(int tile, void* p, int64_t stride);
void dot_s8(int c, int a, int b);
void dot_su8(int c, int a, int b);
void dot_bf16(int c, int a, int b);

// For tests: whether dots of this process may use AVX2. They do where the CPU has it.
void use_avx2(bool may);

}  // namespace pyflow::emulator
