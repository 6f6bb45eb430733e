#include <algorithm>

#include "kernels/dispatch.h"
#include "model/blocks/block.h"
#include "model/input_squares.h"

namespace pyflow {
namespace {

// Activations of one pass over the weights: half of a 1 MiB second-level cache.
constexpr int64_t kChunkBytes = 512 << 10;

// Pairs of rows whose halves of a tile lie on the stack; whole panels.
constexpr int64_t kPairsAtOnce = 4 * kPanelRows;

// Rows whose activations stay in the second-level cache while a group of tiles passes over them; a
// multiple of the panel, so that chunks are whole panels.
int64_t chunk_rows(int64_t k) {
  const int64_t bytes_per_row = act_blocks(k) * static_cast<int64_t>(sizeof(ActBlock));
  const int64_t rows = kChunkBytes / bytes_per_row / kPanelRows * kPanelRows;
  return std::max<int64_t>(2 * kPanelRows, rows);
}

// Tiles [first, last) of one product for rows [row, row + n_rows) of the step's pairs.
void multiply_pairs(const Step& step, const Product& p, int64_t row, int64_t n_rows, int64_t first,
                    int64_t last) {
  const PackedTensor& w = *p.weight;
  const auto format = static_cast<size_t>(w.dtype());
  const auto prefill =
      step.regime == Regime::Prefill ? step.kernels.prefill_matmul[format] : nullptr;
  const auto matmul = prefill ? prefill : step.kernels.matmul[format];
  const size_t tile_bytes = w.nbytes() / static_cast<size_t>(w.tiles());
  const Prefetch prefetch = prefetches();
  alignas(64) float halves[2 * kPairsAtOnce * kTileRows];
  for (int64_t t = first; t < last; ++t)
    for (int64_t r = 0; r < n_rows; r += kPairsAtOnce) {
      const int64_t n = std::min(kPairsAtOnce, n_rows - r);
      matmul({.tiles = w.data(step.copy) + static_cast<size_t>(t) * tile_bytes,
              .k = w.cols(),
              .acts = step.pairs + 2 * (row + r) * act_blocks(w.cols()),
              .x = nullptr,
              .x_stride = 0,
              .n_rows = 2 * n,
              .y = halves,
              .y_stride = kTileRows,
              .prefetch = prefetch},
             0, 1);
      for (int64_t i = 0; i < n; ++i) {
        float* y = p.y + (row + r + i) * p.y_stride + t * kTileRows;
        const float* half = halves + 2 * i * kTileRows;
        for (int64_t lane = 0; lane < kTileRows; ++lane)
          y[lane] = half[lane] + half[kTileRows + lane];
      }
    }
}

// Tiles [first, last) of one product for rows [row, row + n_rows) of x, or of acts.
void multiply_tiles(const Step& step, const Product& p, const ActBlock* acts, const float* x,
                    int64_t x_stride, int64_t row, int64_t n_rows, int64_t first, int64_t last) {
  const PackedTensor& w = *p.weight;
  const auto format = static_cast<size_t>(w.dtype());
  const auto prefill =
      step.regime == Regime::Prefill ? step.kernels.prefill_matmul[format] : nullptr;
  const auto matmul = prefill ? prefill : step.kernels.matmul[format];
  const MatmulArgs args = {.tiles = w.data(step.copy),
                           .k = w.cols(),
                           .acts = acts + row * act_blocks(w.cols()),
                           .x = x + row * x_stride,
                           .x_stride = x_stride,
                           .n_rows = n_rows,
                           .y = p.y + row * p.y_stride,
                           .y_stride = p.y_stride,
                           .prefetch = prefetches()};
  matmul(args, first, last);
}

// The same by pairs where the weights take them.
void multiply_tiles(const Step& step, const Product& p, const float* x, int64_t x_stride,
                    int64_t row, int64_t n_rows, int64_t first, int64_t last) {
  if (step.pairs && fine_inputs(p.weight->dtype()))
    multiply_pairs(step, p, row, n_rows, first, last);
  else
    multiply_tiles(step, p, step.acts, x, x_stride, row, n_rows, first, last);
}

// Row r of n_rows, which is quantized already, as the r-th pair: itself, and what it leaves of x.
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

// The pairs of all rows, if any of the products takes them.
void pair_up(Step& step, Team& team, std::span<const Product> products, const float* x,
             int64_t stride, int64_t n_rows) {
  const auto takes = [](const Product& p) { return fine_inputs(p.weight->dtype()); };
  if (!step.pairs || std::ranges::none_of(products, takes)) return;
  const int64_t k = products[0].weight->cols();
  each_row(step, team, n_rows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) make_pair(step, x + r * stride, k, r, n_rows);
  });
}

}  // namespace

// Threads share the columns, so that each sum takes its rows in order.
void observe(Step& step, Team& team, std::span<const Product> products, const float* x,
             int64_t x_stride, int64_t n_rows) {
  if (!step.input_squares) return;
  team.for_each(products[0].weight->cols(), kActBlock, [&](int64_t begin, int64_t end) {
    for (const Product& p : products)
      for (int64_t r = 0; r < n_rows; ++r)
        step.input_squares->add(*p.weight, x + r * x_stride, begin, end);
  });
  if (team.rank() == 0)
    step.input_squares->prepare_moments(products.size(),
                                        [&](size_t i) { return products[i].weight; });
  team.barrier();
  const int64_t moments = step.input_squares->moments_of(*products[0].weight);
  if (moments < 0) return;
  team.for_each(step.input_squares->moment_steps(moments), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      step.input_squares->add_moments(moments, x, x_stride, n_rows, i);
  });
  if (team.rank() == 0) step.input_squares->end_moments(moments, n_rows);
}

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
  observe(step, team, products, x, x_stride, n_rows);
  pair_up(step, team, products, x, x_stride, n_rows);
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
        multiply_tiles(step, p, x, x_stride, r, std::min(chunk, n_rows - r), first, last);
    }
  });
}

void multiply(Step& step, Team& team, std::span<const Product> products, const float* x,
              int64_t x_stride, int64_t n_rows, const AfterTiles& after) {
  observe(step, team, products, x, x_stride, n_rows);
  pair_up(step, team, products, x, x_stride, n_rows);
  const PackedTensor& w = *products[0].weight;
  const int64_t chunk = chunk_rows(w.cols());
  team.for_each(w.tiles(), tile_grain(w.tiles(), team.size()), [&](int64_t begin, int64_t end) {
    const int64_t column = begin * kTileRows,
                  columns = std::min(end * kTileRows, w.rows()) - column;
    for (int64_t r = 0; r < n_rows; r += chunk) {
      const int64_t n = std::min(chunk, n_rows - r);
      for (const Product& p : products) multiply_tiles(step, p, x, x_stride, r, n, begin, end);
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
  for (size_t i = 0; i < n_jobs; ++i) tiles += at(i).products[0].weight->tiles();
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
          multiply_tiles(step, job.products[p], job.acts, job.x, job.x_stride, r, n, first, last);
        for (int64_t row = r; after && row < r + n; ++row) after(i, row, column, columns);
      }
    }
  });
}

}  // namespace pyflow
