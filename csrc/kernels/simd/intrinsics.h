// The compiler's intrinsics, for files compiled once per instruction set. Everything else in them
// lies in an unnamed namespace, where system headers must not be included.
#pragma once

// GCC 12's own AVX-512 intrinsics pass "undefined" vectors around and then warn of them.
#if defined(__AVX512F__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
