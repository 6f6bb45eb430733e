#include "model/blocks/linear.h"

#include <algorithm>

#include "kernels/dispatch.h"
#include "model/observer.h"
#include "model/weights.h"

namespace pyflow {
namespace {

// Activations of one pass over the weights: half of a 1 MiB second-level cache.
constexpr int64_t kChunkBytes = 512 << 10;

// Pairs of rows whose halves of a tile are held on the stack; whole panels.
constexpr int64_t kPairsAtOnce = 4 * kPanelRows;

// Rows whose activations stay in the second-level cache while a group of tiles passes over them; a
// multiple of the panel, so that chunks are whole panels.
int64_t chunk_rows(int64_t k) {
  const int64_t bytes_per_row = act_blocks(k) * static_cast<int64_t>(sizeof(ActBlock));
  const int64_t rows = kChunkBytes / bytes_per_row / kPanelRows * kPanelRows;
  return std::max<int64_t>(2 * kPanelRows, rows);
}

// Rows [first, first + n) of an input.
struct Rows {
  const float* x;
  int64_t x_stride;
  const ActBlock* acts;
  int64_t first, n;
};

auto matmul_for(const Step& step, DType dtype) {
  const auto format = static_cast<size_t>(dtype);
  // The rows of a step are all of prompts, or none is, where the two differ (Context::run).
  const auto prefill = step.n_prefill > 0 ? step.kernels.prefill_matmul[format] : nullptr;
  return prefill ? prefill : step.kernels.matmul[format];
}

// Tiles [begin, end) of one product.
void multiply_tiles(const Step& step, const Product& p, const Rows& rows, int64_t begin,
                    int64_t end) {
  const PackedTensor& w = *p.weight;
  matmul_for(step, w.dtype())({.tiles = w.data(step.copy),
                               .k = w.cols(),
                               .acts = rows.acts + rows.first * act_blocks(w.cols()),
                               .x = rows.x + rows.first * rows.x_stride,
                               .x_stride = rows.x_stride,
                               .n_rows = rows.n,
                               .y = p.y + rows.first * p.y_stride,
                               .y_stride = p.y_stride,
                               .prefetch = prefetches()},
                              begin, end);
}

// The same from the step's pairs of rows: the two halves of each are multiplied and added.
void multiply_pairs(const Step& step, const Product& p, const Rows& rows, int64_t begin,
                    int64_t end) {
  const PackedTensor& w = *p.weight;
  const auto matmul = matmul_for(step, w.dtype());
  const size_t tile_bytes = w.nbytes() / static_cast<size_t>(w.tiles());
  const Prefetch prefetch = prefetches();
  alignas(64) float halves[2 * kPairsAtOnce * kTileRows];
  for (int64_t t = begin; t < end; ++t)
    for (int64_t r = 0; r < rows.n; r += kPairsAtOnce) {
      const int64_t n = std::min(kPairsAtOnce, rows.n - r);
      matmul({.tiles = w.data(step.copy) + static_cast<size_t>(t) * tile_bytes,
              .k = w.cols(),
              .acts = step.pairs + 2 * (rows.first + r) * act_blocks(w.cols()),
              .x = nullptr,
              .x_stride = 0,
              .n_rows = 2 * n,
              .y = halves,
              .y_stride = kTileRows,
              .prefetch = prefetch},
             0, 1);
      for (int64_t i = 0; i < n; ++i) {
        float* y = p.y + (rows.first + r + i) * p.y_stride + t * kTileRows;
        const float* half = halves + 2 * i * kTileRows;
        for (int64_t lane = 0; lane < kTileRows; ++lane)
          y[lane] = half[lane] + half[kTileRows + lane];
      }
    }
}

// By pairs if the weights have fine inputs.
void multiply_step_tiles(const Step& step, const Product& p, const Rows& rows, int64_t begin,
                         int64_t end) {
  if (step.pairs && fine_inputs(p.weight->dtype()))
    multiply_pairs(step, p, rows, begin, end);
  else
    multiply_tiles(step, p, rows, begin, end);
}

// Writes pair r of n_rows: the quantized row r, and what is left of x after it, quantized too.
void make_pair(const Step& step, const float* x, int64_t k, int64_t r, int64_t n_rows) {
  const int64_t n_kb = act_blocks(k);
  for (int64_t kb = 0; kb < n_kb; ++kb) {
    const ActBlock& coarse = step.acts[act_index(r, kb, n_rows, n_kb)];
    float rest[kActBlock];
    const int64_t n = std::min(kActBlock, k - kb * kActBlock);
    for (int64_t i = 0; i < n; ++i)
      rest[i] = x[kb * kActBlock + i] - coarse.scale[i / 32] * static_cast<float>(coarse.q[i]);
    step.pairs[act_index(2 * r, kb, 2 * n_rows, n_kb)] = coarse;
    step.kernels.quantize(rest, n, step.pairs + act_index(2 * r + 1, kb, 2 * n_rows, n_kb), 1);
  }
}

// The pairs of all rows, if any product has fine inputs.
void pair_up(Step& step, Team& team, std::span<const Product> products, const float* x,
             int64_t stride, int64_t n_rows) {
  const auto takes = [](const Product& p) { return fine_inputs(p.weight->dtype()); };
  if (!step.pairs || std::ranges::none_of(products, takes)) return;
  const int64_t k = products[0].weight->cols();
  each_row(step, team, n_rows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) make_pair(step, x + r * stride, k, r, n_rows);
  });
}

// Shows the input to the observer, if there is one.
void observe(const Step& step, Team& team, std::span<const Product> products, MatrixInput input) {
  std::vector<const PackedTensor*> weights;
  for (const Product& p : products) weights.push_back(p.weight);
  input.weights = weights;
  step.observer->input(team, input);
}

// What precedes the shared loop of a product.
void prepare(Step& step, Team& team, std::span<const Product> products, const float* x,
             int64_t x_stride, int64_t n_rows) {
  if (step.observer)
    observe(step, team, products, {.weights = {}, .x = x, .x_stride = x_stride, .n_rows = n_rows});
  pair_up(step, team, products, x, x_stride, n_rows);
}

}  // namespace

void quantize_rows(Step& step, Team& team, const float* x, int64_t stride, int64_t n_rows,
                   int64_t k) {
  each_row(step, team, n_rows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      quantize_row(step, x + r * stride, k, step.acts, r, n_rows);
  });
}

void quantize_row(const Step& step, const float* x, int64_t k, ActBlock* acts, int64_t r,
                  int64_t n_rows) {
  const int64_t n_kb = act_blocks(k), first = act_index(r, 0, n_rows, n_kb);
  const int64_t width = n_kb > 1 ? act_index(r, 1, n_rows, n_kb) - first : 1;
  step.kernels.quantize(x, k, acts + first, width);
}

void multiply(Step& step, Team& team, std::span<const Product> products, const float* x,
              int64_t x_stride, int64_t n_rows) {
  prepare(step, team, products, x, x_stride, n_rows);
  int64_t tiles = 0;
  for (const Product& p : products) tiles += p.weight->tiles();
  const int64_t chunk = chunk_rows(products[0].weight->cols());
  team.for_each(tiles, tile_grain(tiles, team.size()), [&](int64_t begin, int64_t end) {
    int64_t base = 0;
    for (const Product& p : products) {
      const int64_t first = std::max(begin, base) - base,
                    last = std::min(end, base + p.weight->tiles()) - base;
      base += p.weight->tiles();
      if (first >= last) continue;
      for (int64_t r = 0; r < n_rows; r += chunk)
        multiply_step_tiles(step, p, {x, x_stride, step.acts, r, std::min(chunk, n_rows - r)},
                            first, last);
    }
  });
}

void multiply(Step& step, Team& team, std::span<const Product> products, const float* x,
              int64_t x_stride, int64_t n_rows, const AfterTiles& after) {
  prepare(step, team, products, x, x_stride, n_rows);
  const PackedTensor& w = *products[0].weight;
  const int64_t chunk = chunk_rows(w.cols());
  team.for_each(w.tiles(), tile_grain(w.tiles(), team.size()), [&](int64_t begin, int64_t end) {
    const int64_t column = begin * kTileRows,
                  columns = std::min(end * kTileRows, w.rows()) - column;
    for (int64_t r = 0; r < n_rows; r += chunk) {
      const int64_t n = std::min(chunk, n_rows - r);
      for (const Product& p : products)
        multiply_step_tiles(step, p, {x, x_stride, step.acts, r, n}, begin, end);
      for (int64_t i = r; i < r + n; ++i) after(i, column, columns);
    }
  });
}

void multiply(Step& step, Team& team, const Product& product, const float* bias, const float* x,
              int64_t x_stride, int64_t n_rows) {
  const std::span one(&product, 1);
  if (!bias) return multiply(step, team, one, x, x_stride, n_rows);
  const auto add_bias = [&](int64_t row, int64_t column, int64_t columns) {
    step.kernels.add(product.y + row * product.y_stride + column, bias + column, columns);
  };
  multiply(step, team, one, x, x_stride, n_rows, std::cref(add_bias));
}

void multiply(Step& step, Team& team, size_t n_jobs, const JobAt& at, const AfterJobTiles& after) {
  int64_t tiles = 0;
  for (size_t i = 0; i < n_jobs; ++i) {
    const Job job = at(i);
    tiles += job.products[0].weight->tiles();
    if (step.observer)
      observe(step, team, std::span(job.products).first(job.n_products),
              {{}, job.x, job.x_stride, job.n_rows, job.rows, true});
  }
  team.for_each(tiles, tile_grain(tiles, team.size()), [&](int64_t begin, int64_t end) {
    int64_t base = 0;
    for (size_t i = 0; i < n_jobs && base < end; ++i) {
      const Job job = at(i);
      const PackedTensor& w = *job.products[0].weight;
      const int64_t first = std::max(begin, base) - base,
                    last = std::min(end, base + w.tiles()) - base;
      base += w.tiles();
      if (first >= last) continue;
      const int64_t chunk = chunk_rows(w.cols()), column = first * kTileRows,
                    columns = std::min(last * kTileRows, w.rows()) - column;
      for (int64_t r = 0; r < job.n_rows; r += chunk) {
        const int64_t n = std::min(chunk, job.n_rows - r);
        for (size_t p = 0; p < job.n_products; ++p)
          multiply_tiles(step, job.products[p], {job.x, job.x_stride, job.acts, r, n}, first, last);
        for (int64_t row = r; after && row < r + n; ++row) after(i, row, column, columns);
      }
    }
  });
}

}  // namespace pyflow
