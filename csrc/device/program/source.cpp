#include "device/program/source.h"

#include <algorithm>

#include "device/program/formats.h"

namespace pyflow::device {
namespace {

// Work-items of the largest group: with 16 slices of 64 k and of up to 256 k, K = 4096 keeps all of
// them busy.
constexpr int kMostSlices = 16, kFewestSlices = 4;

}  // namespace

int slices_of(const DeviceInfo& info) {
  int slices = kMostSlices;
  while (slices > kFewestSlices && static_cast<uint32_t>(16 * slices) > info.most_items)
    slices /= 2;
  if (static_cast<uint32_t>(16 * slices) > info.most_items)
    throw DeviceError(info.name + ": groups of at most " + std::to_string(info.most_items) +
                      " work-items: expected " + std::to_string(16 * kFewestSlices));
  return slices;
}

Source program_source(const DeviceInfo& info, std::span<const DType> formats) {
  const auto& texts = kernel_texts();
  const int slices = slices_of(info);
  const bool cuda = info.api == "CUDA";
  Source source;
  for (const char* name : {cuda ? "prelude_cuda" : "prelude_opencl", "words", "math", "rows",
                           "cells", "attention", "choice", "probe"})
    source.text += texts.at(name);
  if (info.matrix_units)
    for (const char* name : {"units", "units_cuda"}) source.text += texts.at(name);
  for (DType dtype : formats) source.text += format_source(dtype, slices, info.matrix_units);
  source.options = "-w -DSLICES=" + std::to_string(slices);
  // Registers have no index, so GPUs need loops over them unrolled; compilers for CPUs know better.
  if (info.kind != Kind::Cpu) source.options += " -DUNROLLED";
  if (info.has_f64) source.options += " -DHAS_F64";
  if (info.integer_dots) source.options += " -cl-std=CL3.0 -DINTEGER_DOTS";
  if (info.exact_division) source.options += " -DEXACT_DIVISION";
  if (cuda)
    source.options += " --fmad=false --ftz=false --prec-div=true --prec-sqrt=true";
  else if (info.exact_division)
    source.options += " -cl-fp32-correctly-rounded-divide-sqrt";
  return source;
}

}  // namespace pyflow::device
