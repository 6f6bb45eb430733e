#include <algorithm>

#include "model/block.h"

namespace pyflow {
namespace {

// Activations of one pass over the weights: half of a 1 MiB second-level cache.
constexpr int64_t kChunkBytes = 512 << 10;

int64_t blocks_of(int64_t k) { return (k + kActBlock - 1) / kActBlock; }

// Rows whose activations stay in the second-level cache while a group of tiles passes over them; a
// multiple of the panel, so that chunks are whole panels.
int64_t chunk_rows(int64_t bytes_per_row) {
  const int64_t rows = kChunkBytes / bytes_per_row / kPanelRows * kPanelRows;
  return std::max<int64_t>(2 * kPanelRows, rows);
}

}  // namespace

void quantize_rows(Step& step, Team& team, const float* x, int64_t stride, int64_t n_rows,
                   int64_t k) {
  const int64_t n_kb = blocks_of(k);
  team.for_each(n_rows, std::max<int64_t>(1, n_rows / (4 * team.size())),
                [&](int64_t begin, int64_t end) {
                  for (int64_t r = begin; r < end; ++r) {
                    const int64_t first = act_index(r, 0, n_rows, n_kb);
                    const int64_t width = n_kb > 1 ? act_index(r, 1, n_rows, n_kb) - first : 1;
                    step.kernels.quantize(x + r * stride, k, step.acts + first, width);
                  }
                });
}

void multiply(Step& step, Team& team, std::span<const Product> products, const float* x,
              int64_t x_stride, int64_t n_rows) {
  int64_t tiles = 0;
  for (const Product& p : products) tiles += p.weight->tiles();
  // A few pieces per thread, so that a delayed thread can be helped.
  const int64_t grain = std::max<int64_t>(1, tiles / (8 * team.size()));
  team.for_each(tiles, grain, [&](int64_t begin, int64_t end) {
    int64_t base = 0;
    for (const Product& p : products) {
      const PackedTensor& w = *p.weight;
      const int64_t first = std::max(begin, base) - base,
                    last = std::min(end, base + w.tiles()) - base;
      base += w.tiles();
      if (first >= last) continue;
      const size_t format = static_cast<size_t>(w.dtype());
      const auto prefill =
          step.regime == Regime::Prefill ? step.kernels.prefill_matmul[format] : nullptr;
      const auto matmul = prefill ? prefill : step.kernels.matmul[format];
      const int64_t n_kb = blocks_of(w.cols());
      const int64_t chunk = chunk_rows(n_kb * static_cast<int64_t>(sizeof(ActBlock)));
      for (int64_t r = 0; r < n_rows; r += chunk) {
        const MatmulArgs args = {.tiles = w.data(),
                                 .k = w.cols(),
                                 .acts = step.acts + r * n_kb,
                                 .x = x + r * x_stride,
                                 .x_stride = x_stride,
                                 .n_rows = std::min(chunk, n_rows - r),
                                 .y = p.y + r * p.y_stride,
                                 .y_stride = p.y_stride};
        matmul(args, first, last);
      }
    }
  });
}

}  // namespace pyflow
