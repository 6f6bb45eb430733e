// The kernel table of an instruction set with tiles: another table's kernels, and products and
// attention by tiles. CMakeLists.txt compiles this file once for each, like isa.cpp and by the same rule, with
// PYFLOW_ISA=amx, PYFLOW_BASE=avx512 (the other table), PYFLOW_TILES=Hardware (kernels/tiles/words.h),
// and the lanes PYFLOW_SIMD and PYFLOW_TILE_LANES.
#include <stddef.h>
#include <stdint.h>

#include <type_traits>

#include "kernels/simd/intrinsics.h"
#include "kernels/table.h"
#include "kernels/tiles/config.h"
#include "kernels/tiles/emulator.h"
#include "kernels/tiles/emulator_tile.h"
#include "quant/formats.def"

#define PYFLOW_JOINED(a, b) a##b
#define PYFLOW_JOIN(a, b) PYFLOW_JOINED(a, b)
#define PYFLOW_TEXT_OF(name) #name
#define PYFLOW_TEXT(name) PYFLOW_TEXT_OF(name)

namespace pyflow {

extern const KernelTable* PYFLOW_JOIN(kernels_, PYFLOW_BASE)() noexcept;

namespace {

const KernelTable* base_table = nullptr;  // set before anything is multiplied

// In this order: each builds on those before it.
// clang-format off
#include PYFLOW_SIMD
#include PYFLOW_TILE_LANES
#include "kernels/tiles/words.h"
#include "kernels/tiles/self_test.inl"
#include "kernels/matmul/prefetch.inl"
#include "kernels/tiles/int8.inl"
#include "kernels/tiles/panel_weights.inl"
#include "kernels/tiles/panels.inl"
#include "kernels/math.inl"
#include "kernels/attention/block.inl"
#include "kernels/tiles/attention_operands.inl"
#include "kernels/tiles/attention.inl"
// clang-format on

template <class Format>
concept FineInputs = requires { requires Format::kFineInputs; };

template <class Scratch>
void needs_scratch(KernelTable& t) {
  constexpr auto kSize = static_cast<int64_t>(sizeof(Scratch));
  if (t.scratch_nbytes < kSize) t.scratch_nbytes = kSize;
}

template <DType D, class Format>
void fill_products(KernelTable& t) {
  constexpr auto kIndex = static_cast<size_t>(D);
  if constexpr (D == DType::BF16) {
    t.prefill_matmul[kIndex] = matmul_panels<PYFLOW_TILES, FloatPanels>;
  } else if constexpr (!quant::FloatInputs<Format>) {
    t.matmul[kIndex] = matmul_tiles<D, Format, PYFLOW_TILES>;
    needs_scratch<TileScratch<Format>>(t);
    if constexpr (!FineInputs<Format>)
      t.prefill_matmul[kIndex] = matmul_panels<PYFLOW_TILES, QuantizedPanels<Format>>;
  }
}

KernelTable make_table() {
  base_table = PYFLOW_JOIN(kernels_, PYFLOW_BASE)();
  KernelTable t = *base_table;
  t.name = PYFLOW_TEXT(PYFLOW_ISA);
  t.tiles_agree = agrees_with_emulator<PYFLOW_TILES>;
  t.panel_row = panel_row;
  t.prefill_attend = attend_by_tiles<PYFLOW_TILES>;
  needs_scratch<PanelScratch>(t);
  needs_scratch<AttentionScratch>(t);
#define PYFLOW_FORMAT(name, id, block, bytes) fill_products<DType::name, quant::name>(t);
#include "quant/formats.def"
#undef PYFLOW_FORMAT
  return t;
}

}  // namespace

extern const KernelTable* PYFLOW_JOIN(kernels_, PYFLOW_ISA)() noexcept;
const KernelTable* PYFLOW_JOIN(kernels_, PYFLOW_ISA)() noexcept {
  static const KernelTable table = make_table();
  return &table;
}

}  // namespace pyflow
