// The part of a program that multiplies weights of one format.
#pragma once

#include <string>
#include <vector>

#include "core/dtype.h"

namespace pyflow::device {

// How the kernels of a product are compiled: so many rows at once.
struct ProductKernel {
  std::string name;
  int rows;
};

// Those of a format, fewest rows first.
std::vector<ProductKernel> product_kernels(DType dtype, int slices);

// Their source.
std::string format_source(DType dtype, int slices);

}  // namespace pyflow::device
