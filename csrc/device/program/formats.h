// The part of a program that multiplies weights of one format.
#pragma once

#include <string>
#include <vector>

#include "core/dtype.h"

namespace pyflow::device {

// How the kernels of a product are compiled: so many rows at once, and whether by matrix units.
struct ProductKernel {
  std::string name;
  int rows;
  bool units = false;
};

// Those of a format, fewest rows first; the last one by matrix units, if the device has them and the
// format has blocks.
std::vector<ProductKernel> product_kernels(DType dtype, int slices, bool matrix_units);

// Their source.
std::string format_source(DType dtype, int slices, bool matrix_units);

}  // namespace pyflow::device
