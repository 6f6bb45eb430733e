// Sums of outer products: out += a^T b over rows of a and b. One fma per row, in ascending order.
// For example, rows a = {1 2}, {3 4} and b = {5 6}, {7 8} add {1*5 + 3*7, 1*6 + 3*8} to out's first
// row and {2*5 + 4*7, 2*6 + 4*8} to its second.
//
// Rows are far apart, often by a power of two, so that a few of them fill all ways of the
// first-level cache that a column maps to. Therefore the parts that are reused are first copied
// side by side: kOuterDepth rows of the next columns of b, and kOuterRows columns of a. On Zen 3
// with AVX2, at the sizes of moments and error feedback, this raised 21 to 30 GMAC/s to 31 to 38.
constexpr int64_t kOuterDepth = 64, kOuterRows = 32;

// Rows x Tiles vectors of out stay in registers for n rows of a and of b, whose copied columns are
// contiguous.
template <int Rows, int Tiles>
static inline void outer_tile(const float* a, int64_t a_stride, const float* b, int64_t n,
                              float* out, int64_t out_stride) {
  Simd::F acc[Rows][Tiles];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; ++t) acc[r][t] = Simd::load(out + r * out_stride + 16 * t);
  for (int64_t k = 0; k < n; ++k, a += a_stride, b += 16 * Tiles) {
    Simd::F columns[Tiles];
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; ++t) columns[t] = Simd::load(b + 16 * t);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const Simd::F row = Simd::set1(a[r]);
#pragma GCC unroll 4
      for (int t = 0; t < Tiles; ++t) acc[r][t] = Simd::fma(row, columns[t], acc[r][t]);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; ++t) Simd::store(out + r * out_stride + 16 * t, acc[r][t]);
}

// Columns [j, j + 16 * Tiles); at most kOuterDepth rows of a and b, and kOuterRows of out.
template <int Tiles>
static inline void outer_columns(const OuterArgs& args, int64_t j) {
  alignas(64) float panel[kOuterDepth * 16 * Tiles];
  for (int64_t k = 0; k < args.n; ++k)
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; ++t)
      Simd::store(panel + (k * Tiles + t) * 16,
                  Simd::load(args.b + k * args.b_stride + j + 16 * t));
  const auto tile = [&](auto multiply, int64_t i) {
    multiply(args.a + i, args.a_stride, panel, args.n, args.out + i * args.out_stride + j,
             args.out_stride);
  };
  int64_t i = 0;
  for (; i + 4 <= args.rows; i += 4) tile(outer_tile<4, Tiles>, i);
  for (; i < args.rows; ++i) tile(outer_tile<1, Tiles>, i);
}

static inline void outer_part(OuterArgs part) {
  constexpr int kTiles = Simd::kAccumulators < 24 ? 1 : 4;
  alignas(64) float a[kOuterDepth * kOuterRows];
  if (part.a_stride > kOuterRows) {
    for (int64_t k = 0; k < part.n; ++k)
      for (int64_t i = 0; i < part.rows; ++i) a[k * kOuterRows + i] = part.a[k * part.a_stride + i];
    part.a = a;
    part.a_stride = kOuterRows;
  }
  int64_t j = 0;
  for (; j + 16 * kTiles <= part.columns; j += 16 * kTiles) outer_columns<kTiles>(part, j);
  for (; j < part.columns; j += 16) outer_columns<1>(part, j);
}

static void add_outer(const OuterArgs& args) {
  for (int64_t i = 0; i < args.rows; i += kOuterRows)
    for (int64_t k = 0; k < args.n; k += kOuterDepth) {
      OuterArgs part = args;
      part.a += k * args.a_stride + i;
      part.b += k * args.b_stride;
      part.n = args.n - k < kOuterDepth ? args.n - k : kOuterDepth;
      part.out += i * args.out_stride;
      part.rows = args.rows - i < kOuterRows ? args.rows - i : kOuterRows;
      outer_part(part);
    }
}
