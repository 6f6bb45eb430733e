// Sums of outer products: out += a^T b over rows of a and b. One fma per row, ascending.

// Rows rows of out by Tiles vectors of its columns, which stay in registers.
template <int Rows, int Tiles>
static inline void outer_tile(const OuterArgs& args, int64_t i, int64_t j) {
  Simd::F acc[Rows][Tiles];
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; ++t)
      acc[r][t] = Simd::load(args.out + (i + r) * args.out_stride + j + 16 * t);
  const float* a = args.a + i;
  const float* b = args.b + j;
  for (int64_t n = 0; n < args.n; ++n, a += args.a_stride, b += args.b_stride) {
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
    for (int t = 0; t < Tiles; ++t)
      Simd::store(args.out + (i + r) * args.out_stride + j + 16 * t, acc[r][t]);
}

template <int Tiles>
static inline void outer_columns(const OuterArgs& args, int64_t j) {
  int64_t i = 0;
  for (; i + 4 <= args.rows; i += 4) outer_tile<4, Tiles>(args, i, j);
  for (; i < args.rows; ++i) outer_tile<1, Tiles>(args, i, j);
}

static void add_outer(const OuterArgs& args) {
  constexpr int kTiles = kRegisterRows < 8 ? 1 : 4;
  int64_t j = 0;
  for (; j + 16 * kTiles <= args.columns; j += 16 * kTiles) outer_columns<kTiles>(args, j);
  for (; j < args.columns; j += 16) outer_columns<1>(args, j);
}
