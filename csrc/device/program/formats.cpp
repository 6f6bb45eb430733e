#include "device/program/formats.h"

#include <algorithm>

#include "device/program/emit.h"
#include "device/program/source.h"
#include "quant/formats.def"
#include "quant/packed_tensor.h"

namespace pyflow::device {
namespace {

constexpr int kManyRows = 8;

struct Emitted {
  std::string text;
  bool plain;
};

template <class Format>
Emitted emit() {
  if constexpr (Format::kBlock == 1)
    return {emit_plain<Format>(), true};
  else
    return {emit_blocks<Format>(), false};
}

constexpr Emitted (*kEmit[])() = {
#define PYFLOW_FORMAT(name, id, block, bytes) emit<quant::name>,
#include "quant/formats.def"
#undef PYFLOW_FORMAT
};

std::string define(const std::string& what, const std::string& as) {
  return "#define " + what + " " + as + "\n";
}

}  // namespace

// Rows with fine inputs are pairs, so the fewest are two. A group has as many slices as rows.
std::vector<ProductKernel> product_kernels(DType dtype, int slices) {
  std::vector<ProductKernel> kernels;
  for (const int rows : {fine_inputs(dtype) ? 2 : 1, std::min(kManyRows, slices)})
    kernels.push_back(
        {"matmul_" + std::string(info(dtype).name) + "_" + std::to_string(rows), rows});
  return kernels;
}

std::string format_source(DType dtype, int slices) {
  const std::string name(info(dtype).name);
  const Emitted emitted = kEmit[static_cast<size_t>(dtype)]();
  std::string text = "\n" + define("FORMAT(name)", "name##_" + name) + emitted.text;
  for (const ProductKernel& kernel : product_kernels(dtype, slices)) {
    const std::string rows = std::to_string(kernel.rows);
    text += define("ROWS", rows) + define("MATMUL(name)", "name##_" + name + "_" + rows);
    text += kernel_texts().at(emitted.plain ? "matmul_plain" : "matmul");
    text += "#undef ROWS\n#undef MATMUL\n";
  }
  for (const char* used : {"FORMAT", "PIECES", "SUB_BLOCK", "UNIT_BYTES", "SCALE_BYTES",
                           "PIECE_BYTES", "SIGNED", "MINIMUM", "OFFSET"})
    text += "#undef " + std::string(used) + "\n";
  return text;
}

}  // namespace pyflow::device
