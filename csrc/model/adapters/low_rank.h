// What adapters add to products (model/adapters/adapter.h), by the kernels of all float matrices.
#pragma once

#include <functional>
#include <span>

#include "model/blocks/linear.h"

namespace pyflow {

// Rows of an input, the sets of each, and memory for A x.
struct AdaptedRows {
  std::span<const AdapterSet* const> sets;  // of the step's rows
  const int32_t* numbers;                   // of these rows among those; null: 0, 1, ...
  const float* x;
  int64_t x_stride;
  const int32_t* places;  // of these rows in x; null: 0, 1, ...
  float* projected;       // of row i and product p from projected + i * stride + p * step on
  int64_t stride, step;

  const AdapterSet* set(int64_t i) const {
    return sets[static_cast<size_t>(numbers ? numbers[i] : i)];
  }
  int64_t place(int64_t i) const { return places ? places[i] : i; }
};
AdaptedRows adapted_rows(const Step&, const InputRows&);
AdaptedRows adapted_rows(const Step&, const Job&);

// A x of all terms of these rows, in the step's memory. Ends with a barrier if there are any.
void project(Step&, Team&, std::span<const Product>, const InputRows&);
void project(Step&, Team&, size_t n_jobs, const JobAt& at);
// Adds s B (A x) to tiles [begin, end) of product `number` of those, for rows [first, first + n).
void add_low_rank(const Step&, const Product&, size_t number, const AdaptedRows&, int64_t first,
                  int64_t n, int64_t begin, int64_t end);

// A x of one row, whose values are first multiplied by what changes them: the factors of the outputs
// of a matrix of which `weight` is the transposed.
void project_row(const Step&, const PackedTensor* weight, const AdapterSet&, float* x,
                 float* projected);
// Changes a row of the embedding as the set says.
void adapt_embedding(const Step&, const AdapterSet&, int64_t table_row, float* x, int64_t n_embd);

}  // namespace pyflow
