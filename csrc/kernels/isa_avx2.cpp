// The kernel table for avx2. Everything here has internal linkage but the one exported function:
// this file is compiled with instruction-set flags, and nothing of it may be merged into other
// code.
#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/table.h"
#include "quant/formats.def"

namespace pyflow {
namespace {

// In this order: each builds on those before it.
// clang-format off
#include "kernels/simd/avx2.h"
#include "kernels/math.inl"
#include "kernels/matmul/matmul.inl"
#include "kernels/matmul/unpacked.inl"
#include "encode/search.inl"
#include "encode/outer.inl"
#include "encode/round.inl"
#include "kernels/elementwise.inl"
#include "kernels/attention/attention.inl"
// clang-format on

KernelTable make_table() {
  KernelTable t{};
  t.name = "avx2";
  fill_matmul(t);
  fill_matmul_unpacked(t);
  fill_search(t);
  t.add_outer = &add_outer;
  t.round = &round_paths;
  fill_elementwise(t);
  fill_attention(t);
  return t;
}

}  // namespace

extern const KernelTable* kernels_avx2();
const KernelTable* kernels_avx2() {
  static const KernelTable table = make_table();
  return &table;
}

}  // namespace pyflow
