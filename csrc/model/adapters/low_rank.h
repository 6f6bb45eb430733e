// What adapters add to products (model/adapters/adapter.h), by the kernels of all float matrices.
#pragma once

#include "model/blocks/linear.h"

namespace pyflow {

// A x of all terms of these rows, in the step's memory. Ends with a barrier.
void project(Step&, Team&, std::span<const Product>, const InputRows&);
// Adds s B (A x) to tiles [begin, end) of product `number` of those, for rows [first, first + n).
void add_low_rank(const Step&, const Product&, size_t number, const InputRows&, int64_t first,
                  int64_t n, int64_t begin, int64_t end);

}  // namespace pyflow
