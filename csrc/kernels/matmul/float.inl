// y = W . x for F32, F16 and BF16 weights, with f32 activations: one fma per k, ascending, from 0.

// Multiplies Tiles tiles, tile_bytes apart, by Rows rows. Each element is one chain of dependent
// fmas; Rows x Tiles chains hide its latency. All tiles together are prefetched kPrefetchAhead
// bytes ahead; with that distance for each tile, the prefetched lines crowded the first-level cache
// and decoding BF16 lost a tenth.
template <class Format, int Rows, int Tiles, bool Prefetch>
static void multiply_float(const uint8_t* tile, int64_t tile_bytes, int64_t k, const float* x,
                           int64_t x_stride, float* y, int64_t y_stride) {
  Simd::F acc[Rows][Tiles];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; ++t) acc[r][t] = Simd::zero();
  for (int64_t i = 0; i < k; ++i, tile += Format::kUnitBytes) {
    Simd::F w[Tiles];
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; ++t) {
      if constexpr (Prefetch) Simd::prefetch(tile + t * tile_bytes + kPrefetchAhead / Tiles);
      w[t] = Format::template load<Simd>(tile + t * tile_bytes);
    }
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) {
      const Simd::F a = Simd::set1(x[r * x_stride + i]);
#pragma GCC unroll 4
      for (int t = 0; t < Tiles; ++t) acc[r][t] = Simd::fma(w[t], a, acc[r][t]);
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; ++t) Simd::store(y + r * y_stride + t * kTileRows, acc[r][t]);
}

// As many rows as registers hold: with 6 rows of one tile AVX2 reaches its fma peak, 51 GMAC/s at
// 3.2 GHz; 4 rows of two tiles, which exceed its registers, reached 24 to 29.
static constexpr int kFloatTiles = Simd::kAccumulators < 16 ? 1 : 4;
static constexpr int kFloatRows = Simd::kAccumulators < 16 ? Simd::kAccumulators : 4;

// The same for 2 to Rows rows.
template <class Format, int Rows, int Tiles>
static void multiply_float_rows(const MatmulArgs& args, int64_t rows, const uint8_t* tile,
                                int64_t tile_bytes, const float* x, float* y) {
  if (rows < Rows) {
    if constexpr (Rows > 2)
      multiply_float_rows<Format, Rows - 1, Tiles>(args, rows, tile, tile_bytes, x, y);
    return;
  }
  const auto multiply = Rows > kFewRows || args.prefetch != Prefetch::kNone
                            ? multiply_float<Format, Rows, Tiles, true>
                            : multiply_float<Format, Rows, Tiles, false>;
  multiply(tile, tile_bytes, args.k, x, args.x_stride, y, args.y_stride);
}

// Multiplies consecutive tiles by all rows.
template <class Format, int Tiles>
static void multiply_float_tiles(const MatmulArgs& args, const uint8_t* tile, int64_t tile_bytes,
                                 float* y) {
  const auto one = args.prefetch != Prefetch::kNone ? multiply_float<Format, 1, Tiles, true>
                                                    : multiply_float<Format, 1, Tiles, false>;
  for (int64_t r = 0; r < args.n_rows; r += kFloatRows) {
    const int64_t rows = args.n_rows - r;
    const float* x = args.x + r * args.x_stride;
    float* y_rows = y + r * args.y_stride;
    if (rows == 1 || kFloatRows == 1)
      one(tile, tile_bytes, args.k, x, args.x_stride, y_rows, args.y_stride);
    else
      multiply_float_rows<Format, kFloatRows, Tiles>(args, rows, tile, tile_bytes, x, y_rows);
  }
}

template <class Format, int Tiles>
static void matmul_float_by(const MatmulArgs& args, int64_t tile_begin, int64_t tile_end) {
  const int64_t tile_bytes = (args.k * Format::kUnitBytes + 63) / 64 * 64;
  int64_t t = tile_begin;
  for (; t + Tiles <= tile_end; t += Tiles)
    multiply_float_tiles<Format, Tiles>(args, args.tiles + t * tile_bytes, tile_bytes,
                                        args.y + t * kTileRows);
  for (; t < tile_end; ++t)
    multiply_float_tiles<Format, 1>(args, args.tiles + t * tile_bytes, tile_bytes,
                                    args.y + t * kTileRows);
}

// A single row needs several tiles to have enough chains.
static constexpr int kOneRowTiles = kRegisterRows < 4 ? 1 : kRegisterRows / 2;

template <class Format>
static void matmul_float(const MatmulArgs& args, int64_t tile_begin, int64_t tile_end) {
  if (args.n_rows == 1)
    matmul_float_by<Format, kOneRowTiles>(args, tile_begin, tile_end);
  else
    matmul_float_by<Format, kFloatTiles>(args, tile_begin, tile_end);
}
