#include "model/adapters/low_rank.h"

#include <algorithm>
#include <vector>

#include "kernels/dispatch.h"
#include "model/adapters/adapter.h"

namespace pyflow {
namespace {

// Rows of one piece of work, whose inputs stay in a cache; and columns of results on the stack.
constexpr int64_t kRowsAtOnce = 64, kTwoTiles = 2 * kTileRows;

// body(set, first, n) for rows [begin, end) that have adapters, each time some with the same set;
// those whose inputs do not follow each other apart.
template <class Body>
void for_runs(const AdaptedRows& rows, int64_t begin, int64_t end, bool by_inputs, Body&& body) {
  for (int64_t i = begin, n; i < end; i += n) {
    const AdapterSet* set = rows.set(i);
    const auto follows = [&](int64_t next) {
      return rows.set(next) == set && (!by_inputs || rows.place(next) == rows.place(i) + next - i);
    };
    for (n = 1; n < kRowsAtOnce && i + n < end && follows(i + n); ++n) {
    }
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

// body(product, term, first row, rows, tile) for each tile of each A.
template <class Body>
void for_tiles(std::span<const Product> products, const AdaptedRows& rows, int64_t n_rows,
               Body&& body) {
  for (size_t p = 0; p < products.size(); ++p)
    for_runs(rows, 0, n_rows, true, [&](const AdapterSet& set, int64_t first, int64_t n) {
      for (const AdapterSet::Term& term : set.terms(products[p].weight))
        for (int64_t tile = 0; tile < term.a->tiles(); ++tile) body(p, term, first, n, tile);
    });
}

void project_tile(const Step& s, const AdaptedRows& rows, size_t product,
                  const AdapterSet::Term& term, int64_t first, int64_t n, int64_t tile) {
  multiply(s, *term.a, tile, 1, {rows.x + rows.place(first) * rows.x_stride, rows.x_stride, n},
           rows.projected + first * rows.stride + static_cast<int64_t>(product) * rows.step +
               term.offset + tile * kTileRows,
           rows.stride);
}

// each(visit) calls visit(work) for each piece of work, in the same order every time.
template <class Each>
void share(Team& team, Each&& each) {
  int64_t n_pieces = 0;
  each([&](auto&&) { ++n_pieces; });
  if (n_pieces == 0) return;
  team.for_each(n_pieces, 1, [&](int64_t begin, int64_t end) {
    int64_t piece = 0;
    each([&](auto&& work) {
      if (piece >= begin && piece < end) work();
      ++piece;
    });
  });
}

}  // namespace

AdaptedRows adapted_rows(const Step& s, const InputRows& in) {
  const int64_t step = s.low_rank_stride / kMostProducts / kTileRows * kTileRows;
  return {in.adapters, nullptr, in.x, in.stride, nullptr, s.low_rank, s.low_rank_stride, step};
}

AdaptedRows adapted_rows(const Step& s, const Job& job) {
  return {s.adapters,          job.adapted_rows, job.x, job.x_stride, job.rows, job.low_rank,
          job.low_rank_stride, job.low_rank_step};
}

void project(Step& s, Team& team, std::span<const Product> products, const InputRows& in) {
  const AdaptedRows rows = adapted_rows(s, in);
  share(team, [&](auto&& visit) {
    for_tiles(products, rows, in.n_rows,
              [&](size_t p, const AdapterSet::Term& term, int64_t first, int64_t n, int64_t tile) {
                visit([&] { project_tile(s, rows, p, term, first, n, tile); });
              });
  });
}

void project(Step& s, Team& team, size_t n_jobs, const JobAt& at) {
  share(team, [&](auto&& visit) {
    for (size_t i = 0; i < n_jobs; ++i) {
      const Job job = at(i);
      if (job.is_projected) continue;
      const AdaptedRows rows = adapted_rows(s, job);
      for_tiles(
          std::span(job.products).first(job.n_products), rows, job.n_rows,
          [&](size_t p, const AdapterSet::Term& term, int64_t first, int64_t n, int64_t tile) {
            visit([&] { project_tile(s, rows, p, term, first, n, tile); });
          });
    }
  });
}

void add_low_rank(const Step& s, const Product& product, size_t number, const AdaptedRows& rows,
                  int64_t first, int64_t n, int64_t begin, int64_t end) {
  alignas(64) float found[kRowsAtOnce * kTwoTiles];
  for_runs(rows, first, first + n, false, [&](const AdapterSet& set, int64_t row, int64_t n_rows) {
    for (const AdapterSet::Term& term : set.terms(product.weight))
      for (int64_t t = begin; t < end; t += 2) {
        const int64_t n_tiles = std::min<int64_t>(2, end - t), columns = n_tiles * kTileRows;
        multiply(s, *term.b, t, n_tiles,
                 {rows.projected + row * rows.stride + static_cast<int64_t>(number) * rows.step +
                      term.offset,
                  rows.stride, n_rows},
                 found, kTwoTiles);
        for (int64_t i = 0; i < n_rows; ++i) {
          float* y = product.y + (row + i) * product.y_stride + t * kTileRows;
          s.kernels.add_scaled(y, found + i * kTwoTiles, term.scale, columns);
          if (!term.factors) continue;
          const float* factors = term.factors + t * kTileRows;
          for (int64_t j = 0; j < columns; ++j) y[j] *= factors[j];
        }
      }
  });
}

// k = g2 (g1 (W + D1) + D2) c, transposed: q' = W^T (g1 g2 q) + D1^T (g1 g2 q) + D2^T (g2 q).
void project_row(const Step& s, const PackedTensor* weight, const AdapterSet& set, float* x,
                 float* projected) {
  const std::span<const AdapterSet::Term> terms = set.terms(weight);
  for (size_t i = terms.size(); i-- > 0;) {
    const AdapterSet::Term& term = terms[i];
    for (int64_t j = 0; term.in_factors && j < weight->cols(); ++j) x[j] *= term.in_factors[j];
    multiply(s, *term.a, 0, term.a->tiles(), {x, weight->cols(), 1}, projected + term.offset,
             padded(term.a->rows()));
  }
}

void adapt_embedding(const Step& s, const AdapterSet& set, int64_t table_row, float* x,
                     int64_t n_embd) {
  std::vector<float> u, found(static_cast<size_t>(kTwoTiles));
  for (const AdapterSet::Term& term : set.lookups()) {
    u.resize(static_cast<size_t>(term.a->cols()));
    term.a->dequantize_row(table_row, u.data(), s.copy);
    for (int64_t t = 0; t < term.b->tiles(); t += 2) {
      const int64_t n_tiles = std::min<int64_t>(2, term.b->tiles() - t), first = t * kTileRows,
                    columns = std::min(n_tiles * kTileRows, n_embd - first);
      multiply(s, *term.b, t, n_tiles, {u.data(), term.a->cols(), 1}, found.data(), kTwoTiles);
      s.kernels.add_scaled(x + first, found.data(), term.scale, columns);
      for (int64_t j = 0; term.factors && j < columns; ++j) x[first + j] *= term.factors[first + j];
    }
  }
}

}  // namespace pyflow
