// The kernel table of one instruction set. CMakeLists.txt compiles this file once for each, with
// PYFLOW_ISA=avx2, PYFLOW_SIMD="kernels/simd/avx2.h" and the compiler's flags for it. Everything
// but the exported function has internal linkage: the linker must never take code of a newer CPU
// for baseline code.
#include <stddef.h>
#include <stdint.h>

#include "kernels/simd/intrinsics.h"
#include "kernels/table.h"
#include "quant/formats.def"

namespace pyflow {
namespace {

// In this order: each builds on those before it.
// clang-format off
#include PYFLOW_SIMD
#include "kernels/math.inl"
#include "kernels/matmul/matmul.inl"
#ifdef PYFLOW_UNPACKED
#include "kernels/matmul/unpacked.inl"
#endif
#include "kernels/elementwise.inl"
#include "kernels/attention/attention.inl"
// clang-format on

#define PYFLOW_TEXT_OF(name) #name
#define PYFLOW_TEXT(name) PYFLOW_TEXT_OF(name)
KernelTable make_table() {
  KernelTable t{};
  t.name = PYFLOW_TEXT(PYFLOW_ISA);
  fill_matmul(t);
#ifdef PYFLOW_UNPACKED
  fill_matmul_unpacked(t);
#endif
  fill_elementwise(t);
  fill_attention(t);
  return t;
}

}  // namespace

#define PYFLOW_JOINED(a, b) a##b
#define PYFLOW_JOIN(a, b) PYFLOW_JOINED(a, b)
extern const KernelTable* PYFLOW_JOIN(kernels_, PYFLOW_ISA)() noexcept;
const KernelTable* PYFLOW_JOIN(kernels_, PYFLOW_ISA)() noexcept {
  static const KernelTable table = make_table();
  return &table;
}

}  // namespace pyflow
