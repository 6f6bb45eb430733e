#include "model/blocks/linear.h"

#include <algorithm>
#include <array>

#include "kernels/dispatch.h"
#include "model/adapters/low_rank.h"
#include "model/observer.h"
#include "model/weights.h"

namespace pyflow {
namespace {

// Activations of one pass over the weights: half of a 1 MiB second-level cache.
constexpr int64_t kChunkBytes = 512 << 10;

// Pairs of rows whose halves of two tiles are held on the stack; whole panels.
constexpr int64_t kPairsAtOnce = 4 * kPanelRows;
constexpr int64_t kTwoTiles = 2 * kTileRows;

// Rows whose activations stay in the second-level cache while a group of tiles passes over them; a
// multiple of the panel, so that chunks are whole panels.
int64_t chunk_rows(int64_t k) {
  const int64_t bytes_per_row = act_blocks(k) * static_cast<int64_t>(sizeof(ActBlock));
  const int64_t rows = kChunkBytes / bytes_per_row / kPanelRows * kPanelRows;
  return std::max<int64_t>(2 * kPanelRows, rows);
}

// Rows of a prompt that a pair of tiles passes over at once; measured best (256 x 1536 bf16 values
// take 768 KiB of the second-level cache).
constexpr int64_t kPrefillRows = 256;

// Rows of an input that are computed alike. Rounded rows are laid out for each part by itself.
struct Part {
  int64_t first, n;
  bool by_panels;  // in products whose format has prefill_matmul
};

// Rows [first, first + n) of an input, with theirs of what was rounded.
struct Rows {
  const float* x;
  int64_t x_stride;
  const ActBlock* acts;
  const ActBlock* pairs;
  const uint16_t* panels;  // null: not by panels
  int64_t first, n;
};

auto prefill_matmul(const Step& step, const PackedTensor& w) {
  return step.kernels.prefill_matmul[static_cast<size_t>(w.dtype())];
}

bool by_pairs(const Step& step, const PackedTensor& w) {
  return step.pairs && fine_inputs(w.dtype());
}

// What products of one input need of it.
struct Needs {
  bool panels = false;  // for the rows of prompts
  bool acts = false, pairs = false;
  bool acts_of_prompts = false;

  Needs(const Step& step, std::span<const Product> products, const InputRows& in) {
    for (const Product& p : products) {
      if (p.weight->rows() == 0) continue;  // of a member that has none
      const bool prefill = in.n_prefill > 0 && prefill_matmul(step, *p.weight),
                 quantized = !float_inputs(p.weight->dtype());
      panels |= prefill;
      acts |= quantized;
      acts_of_prompts |= quantized && !prefill;
      pairs |= by_pairs(step, *p.weight);
    }
  }

  // Without panels the rows of prompts are like any others.
  std::array<Part, 2> parts(const InputRows& in) const {
    const int64_t n = panels ? in.n_prefill : 0;
    return {{{0, n, true}, {n, in.n_rows - n, false}}};
  }
};

// body(rows) for each part in chunks whose rounded rows stay in the second-level cache.
template <class Body>
void for_chunks(const Step& step, const InputRows& in, const Needs& needs, int64_t k, Body&& body) {
  const int64_t n_kb = act_blocks(k);
  for (const Part& part : needs.parts(in)) {
    int64_t chunk = chunk_rows(k);
    if (part.by_panels && part.n > 0) {  // in even chunks: 260 rows are 160 and 100
      const int64_t n_chunks = (part.n + kPrefillRows - 1) / kPrefillRows,
                    rows = (part.n + n_chunks - 1) / n_chunks;
      chunk = (rows + kPanelGroup - 1) / kPanelGroup * kPanelGroup;
    }
    for (int64_t r = 0; r < part.n; r += chunk) {
      const int64_t first = part.first + r;
      body(Rows{.x = in.x + first * in.stride,
                .x_stride = in.stride,
                .acts = (in.acts ? in.acts : step.acts) + first * n_kb,
                .pairs = step.pairs ? step.pairs + 2 * first * n_kb : nullptr,
                .panels = part.by_panels ? step.panels + panel_values(r, k) : nullptr,
                .first = first,
                .n = std::min(chunk, part.n - r)});
    }
  }
}

// Multiplies the outputs of tiles [begin, end) by the factors of their rows, if there are any.
void multiply_factors(const Product& p, const Rows& rows, int64_t begin, int64_t end) {
  const float* factors = p.weight->factors();
  if (!factors) return;
  for (int64_t r = rows.first; r < rows.first + rows.n; ++r)
    for (int64_t i = begin * kTileRows; i < end * kTileRows; ++i)
      p.y[r * p.y_stride + i] *= factors[i];
}

// Tiles [begin, end) of one product, from rows that are quantized or by panels.
void multiply_tiles(const Step& step, const Product& p, const Rows& rows, int64_t begin,
                    int64_t end) {
  const PackedTensor& w = *p.weight;
  const auto prefill = rows.panels ? prefill_matmul(step, w) : nullptr;
  const auto matmul = prefill ? prefill : step.kernels.matmul[static_cast<size_t>(w.dtype())];
  matmul({.tiles = w.data(step.copy),
          .k = w.cols(),
          .acts = rows.acts,
          .x = rows.x,
          .x_stride = rows.x_stride,
          .n_rows = rows.n,
          .y = p.y + rows.first * p.y_stride,
          .y_stride = p.y_stride,
          .prefetch = prefetches(),
          .panels = rows.panels,
          .scratch = step.kernel_scratch},
         begin, end);
  multiply_factors(p, rows, begin, end);
}

// The same from pairs of rows: the two halves of each are multiplied and added.
void multiply_pairs(const Step& step, const Product& p, const Rows& rows, int64_t begin,
                    int64_t end) {
  const PackedTensor& w = *p.weight;
  const auto matmul = step.kernels.matmul[static_cast<size_t>(w.dtype())];
  const size_t tile_bytes = w.nbytes() / static_cast<size_t>(w.tiles());
  const Prefetch prefetch = prefetches();
  alignas(64) float halves[2 * kPairsAtOnce * kTwoTiles];
  for (int64_t t = begin; t < end; t += 2)
    for (int64_t r = 0; r < rows.n; r += kPairsAtOnce) {
      const int64_t n = std::min(kPairsAtOnce, rows.n - r), n_tiles = std::min<int64_t>(2, end - t);
      matmul({.tiles = w.data(step.copy) + static_cast<size_t>(t) * tile_bytes,
              .k = w.cols(),
              .acts = rows.pairs + 2 * r * act_blocks(w.cols()),
              .x = nullptr,
              .x_stride = 0,
              .n_rows = 2 * n,
              .y = halves,
              .y_stride = kTwoTiles,
              .prefetch = prefetch,
              .scratch = step.kernel_scratch},
             0, n_tiles);
      for (int64_t i = 0; i < n; ++i) {
        float* y = p.y + (rows.first + r + i) * p.y_stride + t * kTileRows;
        const float* half = halves + 2 * i * kTwoTiles;
        for (int64_t lane = 0; lane < n_tiles * kTileRows; ++lane)
          y[lane] = half[lane] + half[kTwoTiles + lane];
      }
    }
  multiply_factors(p, rows, begin, end);
}

// Tiles that are computed together: kernels of AMX tiles take many rows, and those of prompts, by two.
int64_t unit_tiles(const Step& step, const InputRows& in, const Needs& needs) {
  return needs.panels || (in.n_rows >= kPanelRows && step.kernels.has_prefill()) ? 2 : 1;
}

// Product `number` of those of an input: by pairs if the weights have fine inputs.
void multiply_step_tiles(const Step& step, std::span<const Product> products, size_t number,
                         const InputRows& in, const Rows& rows, int64_t begin, int64_t end) {
  const Product& p = products[number];
  if (by_pairs(step, *p.weight))
    multiply_pairs(step, p, rows, begin, end);
  else
    multiply_tiles(step, p, rows, begin, end);
  if (!in.adapters.empty())
    add_low_rank(step, p, number, adapted_rows(step, in), rows.first, rows.n, begin, end);
}

// Writes pair r of n_rows: row r of `acts`, and what is left of x after it, quantized too.
void make_pair(const Step& step, const float* x, int64_t k, const ActBlock* acts, ActBlock* pairs,
               int64_t r, int64_t n_rows) {
  const int64_t n_kb = act_blocks(k);
  for (int64_t kb = 0; kb < n_kb; ++kb) {
    const ActBlock& coarse = acts[act_index(r, kb, n_rows, n_kb)];
    float rest[kActBlock];
    const int64_t n = std::min(kActBlock, k - kb * kActBlock);
    for (int64_t i = 0; i < n; ++i)
      rest[i] = x[kb * kActBlock + i] - coarse.scale[i / 32] * static_cast<float>(coarse.q[i]);
    pairs[act_index(2 * r, kb, 2 * n_rows, n_kb)] = coarse;
    step.kernels.quantize(rest, n, pairs + act_index(2 * r + 1, kb, 2 * n_rows, n_kb), 1);
  }
}

// Rounds row r of a part as the products need it. rounded: members have made the acts.
void round_row(const Step& step, const Needs& needs, const Part& part, const float* x, int64_t k,
               int64_t r, bool rounded) {
  if (part.by_panels) step.kernels.panel_row(x, k, step.panels, r);
  if (rounded || !(part.by_panels ? needs.acts_of_prompts : needs.acts)) return;
  const int64_t at = part.first * act_blocks(k);
  quantize_row(step, x, k, step.acts + at, r, part.n);
  if (needs.pairs) make_pair(step, x, k, step.acts + at, step.pairs + 2 * at, r, part.n);
}

// Shows the input to the observer, if there is one.
void observe(const Step& step, Team& team, std::span<const Product> products, MatrixInput input) {
  std::vector<const PackedTensor*> weights;
  for (const Product& p : products) weights.push_back(p.weight);
  input.weights = weights;
  step.observer->input(team, input);
}

// The order in which products take their input, all of them in the same.
const std::vector<int32_t>* order_of(std::span<const Product> products) {
  for (const Product& p : products)
    if (p.weight->rows() > 0) return p.weight->order();  // a member may have none of a matrix
  return nullptr;
}

// What precedes the shared loop of products.
void prepare(Step& step, Team& team, std::span<const Product> products, const InputRows& in,
             const Needs& needs) {
  if (step.observer)
    observe(step, team, products,
            {.weights = {}, .x = in.x, .x_stride = in.stride, .n_rows = in.n_rows});
  if (!in.adapters.empty()) project(step, team, products, in);
  if (!needs.panels && (in.acts || !needs.acts)) return;
  const int64_t k = products[0].weight->cols();
  const auto parts = needs.parts(in);
  const std::vector<int32_t>* order = order_of(products);
  each_row(step, team, in.n_rows, [&](int64_t begin, int64_t end) {
    std::vector<float> sorted(order ? order->size() : 0);
    for (int64_t r = begin; r < end; ++r) {
      const Part& part = parts[r < parts[1].first ? 0 : 1];
      const float* x = in.x + r * in.stride;
      for (size_t i = 0; i < sorted.size(); ++i) sorted[i] = x[(*order)[i]];
      round_row(step, needs, part, order ? sorted.data() : x, k, r - part.first, in.acts);
    }
  });
}

// So many of the first products take their input in one order.
size_t in_one_order(std::span<const Product> products) {
  for (size_t n = 1; n < products.size(); ++n)
    if (products[n].weight->rows() > 0 &&
        products[n].weight->order() != order_of(products.first(n)))
      return n;
  return products.size();
}

}  // namespace

bool takes_acts(const PackedTensor& weight, const Shares& columns) {
  const bool rounded = !float_inputs(weight.dtype()) && !fine_inputs(weight.dtype());
  // In an order of its own a block has columns of several members.
  return rounded && !weight.order() && in_wire_blocks(columns);
}

Form form_of(const KernelTable& kernels, const PackedTensor& weight, const Shares& columns,
             Regime regime) {
  const bool panels = kernels.prefill_matmul[static_cast<size_t>(weight.dtype())] != nullptr;
  if (regime == Regime::Prefill && panels) return weight.order() ? Form::F32 : Form::Bf16;
  return takes_acts(weight, columns) ? Form::Int8 : Form::F32;
}

SharedRows shared_rows(const Step& s, const PackedTensor& weight, float* x, int64_t stride,
                       const Shares& columns) {
  SharedRows rows = {x, stride, s.n_rows, &columns};
  if (!s.group || !s.adapters.empty()) return rows;
  if (form_of(s.kernels, weight, columns, Regime::Prefill) == Form::Bf16) rows.n_bf16 = s.n_prefill;
  if (takes_acts(weight, columns)) rows.acts = s.shared_acts;
  return rows;
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

void multiply(Step& step, Team& team, std::span<const Product> products, const InputRows& in) {
  if (const size_t n = in_one_order(products); n < products.size()) {
    multiply(step, team, products.first(n), in);
    return multiply(step, team, products.subspan(n), in);
  }
  const Needs needs(step, products, in);
  prepare(step, team, products, in, needs);
  const int64_t unit = unit_tiles(step, in, needs);
  const auto units_of = [unit](const Product& p) { return (p.weight->tiles() + unit - 1) / unit; };
  int64_t units = 0;
  for (const Product& p : products) units += units_of(p);
  team.for_each(units, tile_grain(units, team.size()), [&](int64_t begin, int64_t end) {
    int64_t base = 0;
    for (size_t i = 0; i < products.size(); ++i) {
      const PackedTensor& w = *products[i].weight;
      const int64_t n = units_of(products[i]), first = std::max(begin, base) - base,
                    last = std::min(end, base + n) - base;
      base += n;
      if (first >= last) continue;
      for_chunks(step, in, needs, w.cols(), [&](const Rows& rows) {
        multiply_step_tiles(step, products, i, in, rows, first * unit,
                            std::min(last * unit, w.tiles()));
      });
    }
  });
}

void multiply(Step& step, Team& team, std::span<const Product> products, const InputRows& in,
              const AfterTiles& after, const Halfway& halfway) {
  if (const size_t n = in_one_order(products); n < products.size()) {
    multiply(step, team, products.first(n), in);
    return multiply(step, team, products.subspan(n), in, after, halfway);
  }
  const Needs needs(step, products, in);
  prepare(step, team, products, in, needs);
  const PackedTensor& w = *products[0].weight;
  const int64_t unit = unit_tiles(step, in, needs), units = (w.tiles() + unit - 1) / unit;
  const auto some = [&](int64_t from, int64_t to) {
    team.for_each(to - from, tile_grain(to - from, team.size()), [&](int64_t begin, int64_t end) {
      const int64_t first = (from + begin) * unit, last = std::min((from + end) * unit, w.tiles()),
                    column = first * kTileRows,
                    columns = std::min(last * kTileRows, w.rows()) - column;
      for_chunks(step, in, needs, w.cols(), [&](const Rows& rows) {
        for (size_t i = 0; i < products.size(); ++i)
          multiply_step_tiles(step, products, i, in, rows, first, last);
        for (int64_t i = rows.first; after && i < rows.first + rows.n; ++i)
          after(i, column, columns);
      });
    });
  };
  const int64_t columns_of_unit = unit * kTileRows,
                half = (halfway.n_columns + columns_of_unit - 1) / columns_of_unit;
  if (half > 0) some(0, half);
  if (half > 0 && team.rank() == 0) halfway.then();
  some(half, units);
}

void multiply(Step& step, Team& team, const Product& product, const float* bias,
              const InputRows& in, const Halfway& halfway) {
  const std::span one(&product, 1);
  if (!bias && halfway.n_columns == 0) return multiply(step, team, one, in);
  const auto add_bias = [&](int64_t row, int64_t column, int64_t columns) {
    step.kernels.add(product.y + row * product.y_stride + column, bias + column, columns);
  };
  multiply(step, team, one, in, bias ? AfterTiles(std::cref(add_bias)) : nullptr, halfway);
}

void multiply(Step& step, Team& team, size_t n_jobs, const JobAt& at, const AfterJobTiles& after) {
  int64_t tiles = 0;
  if (!step.adapters.empty()) project(step, team, n_jobs, at);
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
        for (size_t p = 0; p < job.n_products; ++p) {
          multiply_tiles(step, job.products[p],
                         {job.x + r * job.x_stride, job.x_stride,
                          job.acts + r * act_blocks(w.cols()), nullptr, nullptr, r, n},
                         first, last);
          if (!step.adapters.empty())
            add_low_rank(step, job.products[p], p, adapted_rows(step, job), r, n, first, last);
        }
        for (int64_t row = r; after && row < r + n; ++row) after(i, row, column, columns);
      }
    }
  });
}

}  // namespace pyflow
