#include "model/adapters/low_rank.h"

#include <algorithm>

#include "kernels/dispatch.h"
#include "model/adapters/adapter.h"

namespace pyflow {
namespace {

// Rows of one piece of work, whose inputs stay in a cache; and columns of results on the stack.
constexpr int64_t kRowsAtOnce = 64, kTwoTiles = 2 * kTileRows;

// Where A x of a row begins, for a product.
float* projected(const Step& s, const AdapterSet& set, int64_t row, size_t number) {
  return s.low_rank + row * s.low_rank_stride + static_cast<int64_t>(number) * set.floats();
}

// body(set, first, n) for rows [begin, end) that have adapters, each time some with the same set.
template <class Body>
void for_runs(const InputRows& in, int64_t begin, int64_t end, Body&& body) {
  for (int64_t i = begin, n; i < end; i += n) {
    const AdapterSet* set = in.adapters[static_cast<size_t>(i)];
    n = 1;
    while (n < kRowsAtOnce && i + n < end && in.adapters[static_cast<size_t>(i + n)] == set) ++n;
    if (set) body(*set, i, n);
  }
}

struct FloatInput {
  const float* x;
  int64_t stride, n_rows;
};

// Tiles [first, first + n_tiles) of a matrix of floats by some rows, to the first columns of y.
void multiply(const Step& s, const PackedTensor& w, int64_t first, int64_t n_tiles,
              const FloatInput& in, float* y, int64_t y_stride) {
  const size_t tile_bytes = w.nbytes() / static_cast<size_t>(w.tiles());
  s.kernels.matmul[static_cast<size_t>(w.dtype())](
      {.tiles = w.data(s.copy) + static_cast<size_t>(first) * tile_bytes,
       .k = w.cols(),
       .acts = nullptr,
       .x = in.x,
       .x_stride = in.stride,
       .n_rows = in.n_rows,
       .y = y,
       .y_stride = y_stride,
       .prefetch = prefetches(),
       .scratch = s.kernel_scratch},
      0, n_tiles);
}

}  // namespace

void project(Step& s, Team& team, std::span<const Product> products, const InputRows& in) {
  // body(product, set, term, first row, rows, tile) for each tile of each A.
  const auto each = [&](auto&& body) {
    for (size_t p = 0; p < products.size(); ++p)
      for_runs(in, 0, in.n_rows, [&](const AdapterSet& set, int64_t first, int64_t n) {
        for (const AdapterSet::Term& term : set.terms(products[p].weight))
          for (int64_t tile = 0; tile < term.a->tiles(); ++tile) body(p, set, term, first, n, tile);
      });
  };
  int64_t n_pieces = 0;
  each([&](auto&&...) { ++n_pieces; });
  team.for_each(n_pieces, 1, [&](int64_t begin, int64_t end) {
    int64_t piece = 0;
    each([&](size_t p, const AdapterSet& set, const AdapterSet::Term& term, int64_t first,
             int64_t n, int64_t tile) {
      if (piece >= begin && piece < end)
        multiply(s, *term.a, tile, 1, {in.x + first * in.stride, in.stride, n},
                 projected(s, set, first, p) + term.offset + tile * kTileRows, s.low_rank_stride);
      ++piece;
    });
  });
}

void add_low_rank(const Step& s, const Product& product, size_t number, const InputRows& in,
                  int64_t first, int64_t n, int64_t begin, int64_t end) {
  alignas(64) float found[kRowsAtOnce * kTwoTiles];
  for_runs(in, first, first + n, [&](const AdapterSet& set, int64_t row, int64_t n_rows) {
    for (const AdapterSet::Term& term : set.terms(product.weight))
      for (int64_t t = begin; t < end; t += 2) {
        const int64_t n_tiles = std::min<int64_t>(2, end - t);
        multiply(s, *term.b, t, n_tiles,
                 {projected(s, set, row, number) + term.offset, s.low_rank_stride, n_rows}, found,
                 kTwoTiles);
        for (int64_t i = 0; i < n_rows; ++i)
          s.kernels.add_scaled(product.y + (row + i) * product.y_stride + t * kTileRows,
                               found + i * kTwoTiles, term.scale, n_tiles * kTileRows);
      }
  });
}

}  // namespace pyflow
