// The kernel table for scalar. Everything here has internal linkage but the one exported function:
// this file is compiled with instruction-set flags, and nothing of it may be merged into other
// code.
#include <stddef.h>
#include <stdint.h>

#include "kernels/table.h"
#include "quant/formats.def"

namespace pyflow {
namespace {

// In this order: each builds on those before it.
// clang-format off
#include "kernels/simd/scalar.h"
#include "kernels/math.inl"
#include "kernels/matmul/matmul.inl"
#include "encode/search.inl"
#include "encode/outer.inl"
#include "encode/round.inl"
#include "kernels/elementwise.inl"
#include "kernels/attention/attention.inl"
// clang-format on

KernelTable make_table() {
  KernelTable t{};
  t.name = "scalar";
  fill_matmul(t);
  fill_search(t);
  t.add_outer = &add_outer;
  t.round = &round_paths;
  fill_elementwise(t);
  fill_attention(t);
  return t;
}

}  // namespace

extern const KernelTable* kernels_scalar();
const KernelTable* kernels_scalar() {
  static const KernelTable table = make_table();
  return &table;
}

}  // namespace pyflow
