// y = W . x for F32, F16 and BF16 weights, with f32 activations: one fma per k, ascending, from 0.

// Tiles tiles (tile_bytes apart) against Rows rows. Each element is one chain of dependent fmas;
// Rows x Tiles of them in flight hide its latency. All tiles together are fetched kPrefetchAhead
// bytes ahead: each of them that far takes so much of the first-level cache that decoding BF16 lost
// a tenth.
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

template <class Format, int Tiles>
static void multiply_float_rows(const MatmulArgs& args, const uint8_t* tile, int64_t tile_bytes,
                                float* y) {
  constexpr int kRows = kRegisterRows < 4 ? kRegisterRows : 4;
  const auto one = args.prefetch ? multiply_float<Format, 1, Tiles, true>
                                 : multiply_float<Format, 1, Tiles, false>;
  int64_t r = 0;
  for (; r + kRows <= args.n_rows; r += kRows)
    multiply_float<Format, kRows, Tiles, true>(tile, tile_bytes, args.k, args.x + r * args.x_stride,
                                               args.x_stride, y + r * args.y_stride, args.y_stride);
  for (; r < args.n_rows; ++r)
    one(tile, tile_bytes, args.k, args.x + r * args.x_stride, args.x_stride, y + r * args.y_stride,
        args.y_stride);
}

template <class Format>
static void matmul_float(const MatmulArgs& args, int64_t tile_begin, int64_t tile_end) {
  constexpr int kTiles = kRegisterRows < 4 ? 1 : kRegisterRows / 2;
  const int64_t tile_bytes = (args.k * Format::kUnitBytes + 63) / 64 * 64;
  int64_t t = tile_begin;
  for (; t + kTiles <= tile_end; t += kTiles)
    multiply_float_rows<Format, kTiles>(args, args.tiles + t * tile_bytes, tile_bytes,
                                        args.y + t * kTileRows);
  for (; t < tile_end; ++t)
    multiply_float_rows<Format, 1>(args, args.tiles + t * tile_bytes, tile_bytes,
                                   args.y + t * kTileRows);
}
