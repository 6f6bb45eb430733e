// The encode table of one instruction set, compiled like kernels/isa.cpp and by the same rule:
// everything but the exported function has internal linkage.
#include <stddef.h>
#include <stdint.h>

#include "encode/search/searches.h"
#include "encode/table.h"
#include "kernels/simd/intrinsics.h"
#include "quant/formats.def"

namespace pyflow {
namespace {

// In this order: each builds on those before it.
// clang-format off
#include PYFLOW_SIMD
#include "encode/search.inl"
#include "encode/outer.inl"
#include "encode/round.inl"
// clang-format on

EncodeTable make_table() {
  EncodeTable t{};
  fill_search(t);
  t.add_outer = add_outer;
  t.round = round_paths;
  return t;
}

}  // namespace

#define PYFLOW_JOINED(a, b) a##b
#define PYFLOW_JOIN(a, b) PYFLOW_JOINED(a, b)
extern const EncodeTable* PYFLOW_JOIN(encode_, PYFLOW_ISA)();
const EncodeTable* PYFLOW_JOIN(encode_, PYFLOW_ISA)() {
  static const EncodeTable table = make_table();
  return &table;
}

}  // namespace pyflow
