// y = W . x for many rows on AVX2, where a dot product takes several instructions: the sums of
// matmul.inl, bit for bit, with fewer loads and without unpacking weights in each pass.
//
// A unit is unpacked once into the first-level cache for all rows of a block. A pass takes four
// rows, for all sixteen lanes: one broadcast quad of activations serves two products, one register
// of weights four. Eight sums of pairs fill the registers, so the rows' float sums, needed once in
// 32 k, stay in memory.
//
// Instructions for Q4_K, per 32 k x 8 lanes and row: 8 maddubs, 7 additions, madd, conversion,
// multiplication and 2 fma. Twelve of these 20 multiply, for which a Zen 5 core has two of its four
// pipes, so 256 products take six cycles: 149 GMAC/s at 3.5 GHz; 147 were measured.
static constexpr int kUnpackFrom = 5;     // rows; Q4_K by 4 rows 0.91 of matmul_quantized's speed
static constexpr int kUnpackedRows = 64;  // of a block: 24 KiB of activations for a unit of 256 k
static constexpr int kPassRows = 4;

template <class Format>
struct Unpacked {
  static constexpr int kQuads = Format::kPieces * 16, kSubs = kQuads * 4 / Format::kSubBlock;
  alignas(64) uint8_t quads[kQuads][64];
  alignas(64) float s[kSubs][kTileRows], m[Format::kMinimum ? kSubs : 1][kTileRows];
};

template <class Format, int Q>
static inline void unpack_quarter(const uint8_t* piece, uint8_t (*quads)[64]) {
  Simd::B w[4];
  Format::template weights<Simd, Q>(piece, w);
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) Simd::bstore(quads[4 * Q + i], w[i]);
}

template <class Format>
[[gnu::flatten]] static void unpack(const uint8_t* unit, Unpacked<Format>& u) {
  for (int p = 0; p < Format::kPieces; ++p) {
    const uint8_t* piece = unit + Format::kScaleBytes + p * Format::kPieceBytes;
    for (int i = 0; i < Format::kUnitBytes / Format::kPieces; i += 64)
      Simd::prefetch(piece + kPrefetchAhead + i);
    uint8_t(*quads)[64] = u.quads + 16 * p;
    unpack_quarter<Format, 0>(piece, quads);
    unpack_quarter<Format, 1>(piece, quads);
    unpack_quarter<Format, 2>(piece, quads);
    unpack_quarter<Format, 3>(piece, quads);
  }
  Simd::F s[Unpacked<Format>::kSubs], m[Unpacked<Format>::kSubs];
  Format::template scales<Simd>(unit, s, m);
  for (int j = 0; j < Unpacked<Format>::kSubs; ++j) {
    Simd::store(u.s[j], s[j]);
    if constexpr (Format::kMinimum) Simd::store(u.m[j], m[j]);
  }
}

// Multiplies one piece by Rows rows. quads, s and m are those of the piece.
template <class Format, int Rows>
static inline void multiply_piece(const uint8_t (*quads)[64], const float (*s)[kTileRows],
                                  const float (*m)[kTileRows], const ActBlock* a,
                                  float (*sums)[kTileRows]) {
  constexpr int kSub = Format::kSubBlock, kSubs = 32 / kSub;
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    Part::F t[2][Rows];
#pragma GCC unroll 2
    for (int j = half * kSubs; j < (half + 1) * kSubs; ++j) {
      Part::I dot[2][Rows];
      Part::template dots<Format::kMax, kSub / 4, Rows>(quads + j * kSub / 4, a, j * kSub, dot);
#pragma GCC unroll 2
      for (int p = 0; p < 2; ++p) {
        const Part::F scale = Part::load(s[j] + 8 * p);
#pragma GCC unroll 4
        for (int r = 0; r < Rows; ++r) {
          if constexpr (Format::kOffset != 0)
            dot[p][r] = Part::iadd(dot[p][r], dot_start<Part, Format>(a[r], j));
          const Part::F f = Part::to_f(dot[p][r]);
          t[p][r] = j == half * kSubs ? Part::mul(scale, f) : Part::fma(scale, f, t[p][r]);
        }
      }
    }
#pragma GCC unroll 2
    for (int p = 0; p < 2; ++p) {
      if constexpr (Format::kMinimum) {
#pragma GCC unroll 2
        for (int j = half * kSubs; j < (half + 1) * kSubs; ++j) {
          const Part::F minimum = Part::load(m[j] + 8 * p);
#pragma GCC unroll 4
          for (int r = 0; r < Rows; ++r)
            t[p][r] = Part::fma(
                minimum,
                kSub == 32 ? Part::set1(a[r].fsum32[j]) : Part::to_f(Part::iset1(a[r].sum16[j])),
                t[p][r]);
        }
      }
#pragma GCC unroll 4
      for (int r = 0; r < Rows; ++r) {
        float* sum = sums[r] + 8 * p;
        Part::store(sum, Part::fma(t[p][r], Part::set1(a[r].scale[half]), Part::load(sum)));
      }
    }
  }
}

template <class Format, int Rows>
static void multiply_unpacked(const Unpacked<Format>& u, const ActBlock* a, int64_t width,
                              float (*sums)[kTileRows]) {
  constexpr int kSubs = 64 / Format::kSubBlock;
  for (int p = 0; p < Format::kPieces; ++p, a += width)
    multiply_piece<Format, Rows>(u.quads + 16 * p, u.s + kSubs * p,
                                 u.m + (Format::kMinimum ? kSubs * p : 0), a, sums);
}

template <class Format, int Rows>
static inline void multiply_unpacked_rows(int rows, const Unpacked<Format>& u, const ActBlock* a,
                                          int64_t width, float (*sums)[kTileRows]) {
  if (rows == Rows) {
    multiply_unpacked<Format, Rows>(u, a, width, sums);
  } else if constexpr (Rows > 1) {
    multiply_unpacked_rows<Format, Rows - 1>(rows, u, a, width, sums);
  }
}

// Multiplies one tile by n_rows rows from `first`, the first row of a panel; y is the place of row
// 0.
template <class Format>
static void matmul_block(const MatmulArgs& args, const uint8_t* tile, int64_t n_units,
                         int64_t first, int64_t n_rows, float* y) {
  const int64_t n_kb = (args.k + kActBlock - 1) / kActBlock;
  alignas(64) float sums[kUnpackedRows][kTileRows] = {};
  Unpacked<Format> unpacked;
  for (int64_t u = 0; u < n_units; ++u, tile += Format::kUnitBytes) {
    unpack<Format>(tile, unpacked);
    for (int64_t panel = 0; panel < n_rows; panel += kPanelRows) {
      const int64_t left = n_rows - panel, width = left < kPanelRows ? left : kPanelRows;
      const ActBlock* a = args.acts + (first + panel) * n_kb + u * Format::kPieces * width;
      for (int64_t r = 0; r < width; r += kPassRows) {
        const int64_t rows = width - r < kPassRows ? width - r : kPassRows;
        multiply_unpacked_rows<Format, kPassRows>(static_cast<int>(rows), unpacked, a + r, width,
                                                  sums + panel + r);
      }
    }
  }
  for (int64_t r = 0; r < n_rows; ++r)
    Simd::store(y + (first + r) * args.y_stride, Simd::add(Simd::load(sums[r]), Simd::zero()));
}

template <class Format>
static void matmul_unpacked(const MatmulArgs& args, int64_t tile_begin, int64_t tile_end) {
  if (args.n_rows < kUnpackFrom) return matmul_quantized<Format>(args, tile_begin, tile_end);
  constexpr int64_t kUnit = 64 * Format::kPieces;
  const int64_t n_units = (args.k + kUnit - 1) / kUnit;
  for (int64_t t = tile_begin; t < tile_end; ++t)
    for (int64_t first = 0; first < args.n_rows; first += kUnpackedRows) {
      const int64_t left = args.n_rows - first;
      matmul_block<Format>(args, args.tiles + t * n_units * Format::kUnitBytes, n_units, first,
                           left < kUnpackedRows ? left : kUnpackedRows, args.y + t * kTileRows);
    }
}

template <class Format>
static constexpr auto matmul_many_of() {
  if constexpr (quant::FloatInputs<Format>) {
    return matmul_of<Format>();
  } else if constexpr (Format::kSigned) {
    return &matmul_quantized<Format>;
  } else {
    return &matmul_unpacked<Format>;
  }
}

static inline void fill_matmul_unpacked(KernelTable& t) {
#define PYFLOW_FORMAT(name, id, block, bytes) \
  t.matmul[static_cast<size_t>(DType::name)] = matmul_many_of<quant::name>();
#include "quant/formats.def"
#undef PYFLOW_FORMAT
}
