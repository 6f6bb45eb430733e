// y = W . x for blocks of codes with a scale (quant/scaled_floats.h), with f32 activations: each
// weight rounded to f32 on its own, then one fma per k, ascending, from 0, as float.inl has it.

// One row: weights go from their codes into its sums. Tiles as in multiply_float.
template <class Format, int Tiles, bool Prefetch>
static void multiply_codes(const uint8_t* tile, int64_t tile_bytes, int64_t k, const float* x,
                           float* y) {
  Simd::F acc[Tiles];
#pragma GCC unroll 4
  for (int t = 0; t < Tiles; ++t) acc[t] = Simd::zero();
  for (int64_t u = 0; u < k; u += Format::kBlock, tile += Format::kUnitBytes) {
    Simd::F s[Tiles];
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; ++t) s[t] = Format::template scale<Simd>(tile + t * tile_bytes);
    const uint8_t* line = tile + Format::kScaleBytes;
    for (int i = 0; i < Format::kBlock; i += Format::kStep, line += 64, x += Format::kStep) {
#pragma GCC unroll 4
      for (int t = 0; t < Tiles; ++t) {
        if constexpr (Prefetch) Simd::prefetch(line + t * tile_bytes + kPrefetchAhead / Tiles);
        Simd::F w[Format::kStep];
        Format::template weights<Simd>(line + t * tile_bytes, s[t], w);
#pragma GCC unroll 8
        for (int j = 0; j < Format::kStep; ++j) acc[t] = Simd::fma(w[j], Simd::set1(x[j]), acc[t]);
      }
    }
  }
#pragma GCC unroll 4
  for (int t = 0; t < Tiles; ++t) Simd::store(y + t * kTileRows, acc[t]);
}

// Several rows: a unit of kFloatTiles tiles is decoded into the first-level cache for all of them,
// and their sums wait in y.
static constexpr int kDecodedK = 128;
struct Decoded {
  alignas(64) float w[kFloatTiles][kDecodedK][kTileRows];
};

template <class Format, int Tiles>
static void decode_unit(const uint8_t* unit, int64_t tile_bytes, Decoded& to) {
  static_assert(Format::kBlock <= kDecodedK);
  for (int t = 0; t < Tiles; ++t, unit += tile_bytes) {
    const Simd::F s = Format::template scale<Simd>(unit);
    const uint8_t* line = unit + Format::kScaleBytes;
    for (int i = 0; i < Format::kBlock; i += Format::kStep, line += 64) {
      Simd::prefetch(line + kPrefetchAhead / Tiles);
      Simd::F w[Format::kStep];
      Format::template weights<Simd>(line, s, w);
#pragma GCC unroll 8
      for (int j = 0; j < Format::kStep; ++j) Simd::store(to.w[t][i + j], w[j]);
    }
  }
}

// Adds the products of n k to the sums of Rows rows.
template <int Rows, int Tiles>
static void multiply_decoded(const Decoded& from, int n, const float* x, int64_t x_stride,
                             bool first, float* y, int64_t y_stride) {
  Simd::F acc[Rows][Tiles];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r)
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; ++t)
      acc[r][t] = first ? Simd::zero() : Simd::load(y + r * y_stride + t * kTileRows);
  for (int i = 0; i < n; ++i) {
    Simd::F w[Tiles];
#pragma GCC unroll 4
    for (int t = 0; t < Tiles; ++t) w[t] = Simd::load(from.w[t][i]);
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

template <int Rows, int Tiles>
static void multiply_decoded_rows(int64_t rows, const Decoded& from, int n, const float* x,
                                  int64_t x_stride, bool first, float* y, int64_t y_stride) {
  if (rows >= Rows) return multiply_decoded<Rows, Tiles>(from, n, x, x_stride, first, y, y_stride);
  if constexpr (Rows > 1)
    multiply_decoded_rows<Rows - 1, Tiles>(rows, from, n, x, x_stride, first, y, y_stride);
}

template <class Format, int Tiles>
static void multiply_units(const MatmulArgs& args, const uint8_t* tile, int64_t tile_bytes,
                           float* y) {
  Decoded decoded;
  for (int64_t k = 0; k < args.k; k += Format::kBlock, tile += Format::kUnitBytes) {
    decode_unit<Format, Tiles>(tile, tile_bytes, decoded);
    for (int64_t r = 0; r < args.n_rows; r += kFloatRows)
      multiply_decoded_rows<kFloatRows, Tiles>(args.n_rows - r, decoded, Format::kBlock,
                                               args.x + r * args.x_stride + k, args.x_stride,
                                               k == 0, y + r * args.y_stride, args.y_stride);
  }
}

template <class Format, int Tiles, bool OneRow>
static void multiply_scaled_tiles(const MatmulArgs& args, const uint8_t* tile, int64_t tile_bytes,
                                  float* y) {
  if constexpr (OneRow) {
    const auto one = args.prefetch != Prefetch::kNone ? multiply_codes<Format, Tiles, true>
                                                      : multiply_codes<Format, Tiles, false>;
    one(tile, tile_bytes, args.k, args.x, y);
  } else {
    multiply_units<Format, Tiles>(args, tile, tile_bytes, y);
  }
}

template <class Format, int Tiles, bool OneRow>
static void matmul_scaled_by(const MatmulArgs& args, int64_t tile_begin, int64_t tile_end) {
  const int64_t tile_bytes = args.k / Format::kBlock * Format::kUnitBytes;
  int64_t t = tile_begin;
  for (; t + Tiles <= tile_end; t += Tiles)
    multiply_scaled_tiles<Format, Tiles, OneRow>(args, args.tiles + t * tile_bytes, tile_bytes,
                                                 args.y + t * kTileRows);
  for (; t < tile_end; ++t)
    multiply_scaled_tiles<Format, 1, OneRow>(args, args.tiles + t * tile_bytes, tile_bytes,
                                             args.y + t * kTileRows);
}

template <class Format>
static void matmul_scaled(const MatmulArgs& args, int64_t tile_begin, int64_t tile_end) {
  if (args.n_rows == 1)
    matmul_scaled_by<Format, kOneRowTiles, true>(args, tile_begin, tile_end);
  else
    matmul_scaled_by<Format, kFloatTiles, false>(args, tile_begin, tile_end);
}
