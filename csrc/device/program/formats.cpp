#include "device/program/formats.h"

#include <algorithm>

#include "device/program/emit.h"
#include "device/program/source.h"
#include "quant/formats.def"
#include "quant/packed_tensor.h"

namespace pyflow::device {
namespace {

constexpr std::string_view kStem = "matmul";
constexpr int kManyRows = 8, kUnitRows = 128;

struct Emitted {
  std::string text;
  const char* kernel;  // its source, of kernels by the vector
};

template <class Format>
Emitted emit() {
  if constexpr (Format::kBlock == 1)
    return {emit_plain<Format>(), "matmul_plain"};
  else if constexpr (quant::ScaledFloats<Format>)
    return {emit_scaled<Format>(), "matmul_scaled"};
  else
    return {emit_blocks<Format>(), "matmul"};
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
std::vector<ProductKernel> product_kernels(DType dtype, int slices, bool matrix_units) {
  std::vector<ProductKernel> kernels;
  const std::string name = std::string(kStem) + "_" + std::string(info(dtype).name) + "_";
  for (const int rows : {fine_inputs(dtype) ? 2 : 1, std::min(kManyRows, slices)})
    kernels.push_back({name + std::to_string(rows), rows});
  if (matrix_units && !float_inputs(dtype)) kernels.push_back({name + "units", kUnitRows, true});
  return kernels;
}

std::string format_source(DType dtype, int slices, bool matrix_units) {
  const std::string name(info(dtype).name);
  const Emitted emitted = kEmit[static_cast<size_t>(dtype)]();
  std::string text = "\n" + define("FORMAT(name)", "name##_" + name) + emitted.text;
  for (const ProductKernel& kernel : product_kernels(dtype, slices, matrix_units)) {
    text += define("ROWS", std::to_string(kernel.rows)) +
            define("MATMUL(name)", "name##" + kernel.name.substr(kStem.size()));
    text += kernel_texts().at(kernel.units ? "matmul_units" : emitted.kernel);
    text += "#undef ROWS\n#undef MATMUL\n";
  }
  for (const char* used : {"FORMAT", "PIECES", "SUB_BLOCK", "UNIT_BYTES", "SCALE_BYTES",
                           "PIECE_BYTES", "SIGNED", "MINIMUM", "OFFSET", "BLOCK", "STEP"})
    text += "#undef " + std::string(used) + "\n";
  return text;
}

}  // namespace pyflow::device
