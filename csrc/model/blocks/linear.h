// Products of matrices: what the blocks with weights share.
#pragma once

#include <array>
#include <functional>
#include <span>

#include "core/thread_pool.h"
#include "model/group/group.h"
#include "model/step.h"
#include "quant/packed_tensor.h"

namespace pyflow {

// Values of a vector from one on; null: there are none.
inline const float* from(const float* values, int64_t first) {
  return values ? values + first : nullptr;
}

struct Product {
  const PackedTensor* weight;
  float* y;
  int64_t y_stride;
};

// Matrices of one input at most.
inline constexpr int64_t kMostProducts = 3;

// What matrices are multiplied by.
struct InputRows {
  const float* x;
  int64_t stride;
  int64_t n_rows;
  int64_t n_prefill = 0;  // so many, the first ones, take the arithmetic of prompts
  std::span<const AdapterSet* const> adapters = {};  // by row, or null; empty: no row has any
  // Rounded by members, all but rows that go by panels; null: products round them.
  const ActBlock* acts = nullptr;
};
inline InputRows all_rows(const Step& s, const float* x, int64_t stride) {
  return {x, stride, s.n_rows, s.n_prefill, s.adapters};
}

// Whether columns of the input of this matrix can travel between members as acts.
bool takes_acts(const PackedTensor& weight, const Shares& columns);
// How they travel, for rows of a regime.
Form form_of(const KernelTable&, const PackedTensor& weight, const Shares& columns, Regime);
// All rows of a step, whose columns members have some each of: to be gathered, then multiplied by
// this matrix alone.
SharedRows shared_rows(const Step&, const PackedTensor& weight, float* x, int64_t stride,
                       const Shares& columns);
inline InputRows all_rows(const Step& s, const SharedRows& in) {
  return {in.rows, in.stride, s.n_rows, s.n_prefill, s.adapters, in.acts};
}

// y = W x for several matrices over the same input, which is rounded as they need it, in one shared
// loop. Rows of prompts go by panels where a format has prefill_matmul; weights with fine inputs
// take pairs of rows. Weights whose columns have an order take the input so, with one rounding for
// those of the same order, and results are multiplied by the weights' factors of rows. All of these functions show the input to the step's observer. Adapters add
// theirs before anything else is done with the result.
void multiply(Step&, Team&, std::span<const Product>, const InputRows&);
// The same for matrices of one height, whose tiles are computed side by side: once those of some
// rows are complete, after(row, column, columns) may work on each row's new values.
using AfterTiles = std::function<void(int64_t row, int64_t column, int64_t columns)>;
void multiply(Step&, Team&, std::span<const Product>, const InputRows&, const AfterTiles& after,
              const Halfway& halfway = {});
// y = W x + bias; null: no bias.
void multiply(Step&, Team&, const Product&, const float* bias, const InputRows&,
              const Halfway& halfway = {});

// Quantizes n_rows of x for experts.
void quantize_rows(Step&, Team&, const float* x, int64_t stride, int64_t n_rows, int64_t k);
// Quantizes one row into row r of n_rows at `acts`.
void quantize_row(const Step&, const float* x, int64_t k, ActBlock* acts, int64_t r,
                  int64_t n_rows);

// Rows of an input with matrices of their own, at most two, of one height: an expert.
struct Job {
  std::array<Product, 2> products;
  size_t n_products;
  const float* x;
  int64_t x_stride;
  const ActBlock* acts;  // of these rows alone
  int64_t n_rows;
  const int32_t* rows = nullptr;  // their numbers in x, for observers; null: 0, 1, ...
  // For adapters: the step's rows that these are of, null: 0, 1, ...; and where A x of row i and
  // product p goes, low_rank + i * low_rank_stride + p * low_rank_step, or is already.
  const int32_t* adapted_rows = nullptr;
  float* low_rank = nullptr;
  int64_t low_rank_stride = 0, low_rank_step = 0;
  bool is_projected = false;
};
using JobAt = std::function<Job(size_t)>;
using AfterJobTiles = std::function<void(size_t job, int64_t row, int64_t column, int64_t columns)>;
// All jobs in one shared loop, always by the arithmetic of decoding; `after` as above, or null.
void multiply(Step&, Team&, size_t n_jobs, const JobAt& at, const AfterJobTiles& after);

}  // namespace pyflow
