// y = W . x, written once for every weight format and instruction set.
//
// Quantized weights are multiplied by int8 activations. In each 32 k, with sub-blocks j of 32 or 16
// k, for one output element (a lane):
//
//   I_j = sum of (integer weight) * (integer activation)      exact in int32
//   t   = s_0 * I_0,  then t = fma(s_j, I_j, t)               ascending j
//   t   = fma(m_j, sum of activations in j, t)                formats with a minimum, ascending j
//   acc = fma(t, scale of the 32 activations, acc)            ascending k, from 0
//   y   = acc + 0                                             so that a zero is never negative
//
// s_j and m_j are products of the file's scales that f32 holds exactly. Nothing else enters an
// element, so its bits depend only on the weights and the row (contract C1).
//
// Bounds: |activation| <= 127, so |I_j| <= 32 * 128 * 127 = 520192 < 2^24, exact as f32 too. The
// biased form (s8_start) stays within 32 * 255 * 127 + 128 * 32 * 127 < 2^21, and so do unsigned
// bytes (kSigned with an offset), 32 * 255 * 127. Sums are at most 32 * 127 = 4064.
//
// F32, F16, BF16 and codes of floats with a scale are multiplied by f32 activations: one fma per k,
// ascending, from 0.

#include "kernels/matmul/magic.inl"
#include "kernels/matmul/prefetch.inl"

// If sixteen lanes take two registers, many rows are multiplied for one register and then for the
// other, so that everything of a row stays in registers; few rows are multiplied for both at once,
// so that each activation is read once. Lanes: Simd, or a Part of it.
using Part = Simd::Part;

template <class Lanes, int P, class V>
static inline decltype(auto) lanes(const V& whole) {
  if constexpr (std::is_same_v<Lanes, Simd>) {
    return (whole);
  } else {
    return Lanes::template of<P>(whole);
  }
}

// The start value of the integer sum over sub-block j, such that it ends at I_j + from.
template <class Lanes, class Format>
static inline typename Lanes::I dot_start(const ActBlock& a, int j, int32_t from = 0) {
  const int32_t sum = Format::kSubBlock == 32 ? a.sum32[j] : a.sum16[j];
  if constexpr (!Format::kSigned || Format::kMinimum) from -= Format::kOffset * sum;
  if constexpr (Format::kSigned) {
    return Lanes::s8_start(sum, from);
  } else {
    return Lanes::iset1(from);
  }
}

template <class Lanes, class Format>
static inline typename Lanes::I dot16(typename Lanes::I acc, const typename Lanes::B (&w)[4],
                                      const int8_t* a) {
  if constexpr (Format::kSigned) {
    return Lanes::template dot16_s<Format::kMax>(acc, w, a);
  } else {
    return Lanes::template dot16_u<Format::kMax>(acc, w, a);
  }
}

// Activation rows at once: each has an integer sum, t and acc in registers.
static constexpr int kRegisterRows = Part::kAccumulators < 6 ? 1 : Part::kAccumulators / 3;
// Activation rows that are multiplied for all lanes at once.
static constexpr int kWholeRows = Simd::kParts == 1 ? kRegisterRows : 2;
// Up to so many rows wait for memory more than for arithmetic; for them MatmulArgs::prefetch
// decides.
static constexpr int kFewRows = 2;

// Whether the sums of Rows rows start from kMagicBits. Where one instruction adds to a sum, any
// start costs the same; elsewhere an addition would take the place of the conversion. Sub-blocks of
// 16 have two sums in 32 k, only one of which could do so; fewer rows don't pay for z.
template <class Format, int Rows>
static constexpr bool kByMagic =
    Simd::kFreeStart && Format::kSubBlock == 32 && 2 * Rows > kRegisterRows;

// Quarter Q (16 k) of a piece for all rows. A complete sub-block is added to t, a complete half of
// the piece to acc.
template <class Lanes, class Format, int Rows, Prefetch How, int P, int Q>
static inline void quarter(const uint8_t* piece, const Simd::F* s, const Simd::F* z,
                           const Simd::F* m, const ActBlock* a, typename Lanes::I (&dot)[Rows],
                           typename Lanes::F (&t)[Rows], typename Lanes::F (&acc)[Rows]) {
  constexpr int kQuarters = Format::kSubBlock / 16, kSub = Q / kQuarters, kHalf = Q / 2;
  constexpr int kSubs = 2 / kQuarters;  // in a half
  if constexpr (P == 0) prefetch_quarter<Format, How, Q>(piece);
  Simd::B all[4];
  Format::template weights<Simd, Q>(piece, all);
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) {
    if constexpr (Q % kQuarters == 0)
      dot[r] = dot_start<Lanes, Format>(a[r], kSub, kByMagic<Format, Rows> ? kMagicBits : 0);
    if constexpr (std::is_same_v<Lanes, Simd>) {
      dot[r] = dot16<Lanes, Format>(dot[r], all, a[r].q + 16 * Q);
    } else {
      const typename Lanes::B w[4] = {lanes<Lanes, P>(all[0]), lanes<Lanes, P>(all[1]),
                                      lanes<Lanes, P>(all[2]), lanes<Lanes, P>(all[3])};
      dot[r] = dot16<Lanes, Format>(dot[r], w, a[r].q + 16 * Q);
    }
    if constexpr (Q % kQuarters == kQuarters - 1) {
      // By reference: a copy of a vector of two registers would go through memory.
      decltype(auto) scale = lanes<Lanes, P>(s[kSub]);
      if constexpr (kByMagic<Format, Rows>) {
        t[r] = Lanes::fma(scale, Lanes::bits_f(dot[r]), lanes<Lanes, P>(z[kSub]));
      } else {
        const typename Lanes::F f = Lanes::to_f(dot[r]);
        t[r] = kSub % kSubs == 0 ? Lanes::mul(scale, f) : Lanes::fma(scale, f, t[r]);
      }
    }
    if constexpr (Q % 2 == 1) {
      if constexpr (Format::kMinimum) {
#pragma GCC unroll 2
        for (int j = kHalf * kSubs; j < (kHalf + 1) * kSubs; ++j) {
          const typename Lanes::F sum = Format::kSubBlock == 32
                                            ? Lanes::set1(a[r].fsum32[j % 2])
                                            : Lanes::to_f(Lanes::iset1(a[r].sum16[j]));
          t[r] = Lanes::fma(lanes<Lanes, P>(m[j]), sum, t[r]);
        }
      }
      acc[r] = Lanes::fma(t[r], Lanes::set1(a[r].scale[kHalf]), acc[r]);
    }
  }
}

// Multiplies a unit by Rows rows, for the lanes of part P.
template <class Lanes, class Format, int Rows, Prefetch How, int P>
static inline void multiply_unit(const uint8_t* unit, const Simd::F* s, const Simd::F* z,
                                 const Simd::F* m, const ActBlock* a, int64_t width,
                                 typename Lanes::F (&sums)[Rows]) {
  typename Lanes::F acc[Rows];
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) acc[r] = sums[r];
  for (int p = 0; p < Format::kPieces; ++p, a += width) {
    const uint8_t* piece = unit + Format::kScaleBytes + p * Format::kPieceBytes;
    typename Lanes::I dot[Rows];
    typename Lanes::F t[Rows];
    quarter<Lanes, Format, Rows, How, P, 0>(piece, s, z, m, a, dot, t, acc);
    quarter<Lanes, Format, Rows, How, P, 1>(piece, s, z, m, a, dot, t, acc);
    quarter<Lanes, Format, Rows, How, P, 2>(piece, s, z, m, a, dot, t, acc);
    quarter<Lanes, Format, Rows, How, P, 3>(piece, s, z, m, a, dot, t, acc);
    s += 64 / Format::kSubBlock;
    z += 64 / Format::kSubBlock;
    m += 64 / Format::kSubBlock;
  }
#pragma GCC unroll 8
  for (int r = 0; r < Rows; ++r) sums[r] = acc[r];
}

// Multiplies one tile by Rows rows, side by side from `a`; blocks of k are `width` apart. Returns
// whether that was all: what kByMagic finds not to be a number has to be computed again. Without
// `flatten` GCC does not inline what several formats or rows share and passes it through memory:
// half the speed of one row of Q5_0 on AVX2.
template <class Format, int Rows, Prefetch How>
[[gnu::flatten]] static bool multiply_tile(const uint8_t* tile, int64_t n_units, const ActBlock* a,
                                           int64_t width, float* y, int64_t y_stride) {
  constexpr int kScales = Format::kPieces * 64 / Format::kSubBlock;
  constexpr int kParts = Rows <= kWholeRows ? 1 : Simd::kParts;
  using Lanes = std::conditional_t<kParts == 1, Simd, Part>;
  typename Lanes::F acc[kParts][Rows];
  for (auto& part : acc)
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) part[r] = Lanes::zero();
  for (int64_t u = 0; u < n_units; ++u) {
    Simd::F s[kScales], z[kScales], m[kScales];
    Format::template scales<Simd>(tile, s, m);
    if constexpr (kByMagic<Format, Rows>)
#pragma GCC unroll 8
      for (int j = 0; j < kScales; ++j) z[j] = Simd::mul(s[j], Simd::set1(-kMagic));
    multiply_unit<Lanes, Format, Rows, How, 0>(tile, s, z, m, a, width, acc[0]);
    if constexpr (kParts == 2)
      multiply_unit<Lanes, Format, Rows, How, 1>(tile, s, z, m, a, width, acc[1]);
    tile += Format::kUnitBytes;
    a += Format::kPieces * width;
  }
  for (int p = 0; p < kParts; ++p)
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r)
      Lanes::store(y + r * y_stride + p * kTileRows / kParts, Lanes::add(acc[p][r], Lanes::zero()));
  if constexpr (kByMagic<Format, Rows>) {
    static_assert(kParts == 1);
    Simd::F odd = Simd::zero();  // becomes NaN
#pragma GCC unroll 8
    for (int r = 0; r < Rows; ++r) odd = Simd::fma(acc[0][r], Simd::zero(), odd);
    return Simd::reduce_add(odd) == 0.0f;
  }
  return true;
}

template <class Format, int Rows>
static inline void multiply_rows(int rows, const uint8_t* tile, int64_t n_units, const ActBlock* a,
                                 int64_t width, Prefetch prefetch, float* y, int64_t y_stride) {
  if (rows == Rows) {
    auto multiply = prefetch == Prefetch::kFar ? multiply_tile<Format, Rows, Prefetch::kFar>
                                               : multiply_tile<Format, Rows, Prefetch::kNear>;
    if constexpr (Rows <= kFewRows)
      if (prefetch == Prefetch::kNone) multiply = multiply_tile<Format, Rows, Prefetch::kNone>;
    if (!multiply(tile, n_units, a, width, y, y_stride))
      for (int r = 0; r < Rows; ++r)
        multiply_tile<Format, 1, Prefetch::kNear>(tile, n_units, a + r, width, y + r * y_stride,
                                                  y_stride);
  } else if constexpr (Rows > 1) {
    multiply_rows<Format, Rows - 1>(rows, tile, n_units, a, width, prefetch, y, y_stride);
  }
}

template <class Format>
static void matmul_quantized(const MatmulArgs& args, int64_t tile_begin, int64_t tile_end) {
  constexpr int64_t kUnit = 64 * Format::kPieces;
  const int64_t n_units = (args.k + kUnit - 1) / kUnit, n_kb = (args.k + kActBlock - 1) / kActBlock;
  for (int64_t t = tile_begin; t < tile_end; ++t) {
    const uint8_t* tile = args.tiles + t * n_units * Format::kUnitBytes;
    for (int64_t first = 0; first < args.n_rows; first += kPanelRows) {
      const int64_t left = args.n_rows - first, width = left < kPanelRows ? left : kPanelRows;
      // As few passes as the registers allow, of even size: 9 rows are 5 + 4, not 8 + 1.
      const int64_t passes = (width + kRegisterRows - 1) / kRegisterRows;
      const ActBlock* a = args.acts + first * n_kb;
      for (int64_t i = 0; i < passes; ++i) {
        const int64_t begin = width * i / passes, end = width * (i + 1) / passes;
        multiply_rows<Format, kRegisterRows>(
            static_cast<int>(end - begin), tile, n_units, a + begin, width, args.prefetch,
            args.y + (first + begin) * args.y_stride + t * kTileRows, args.y_stride);
      }
    }
  }
}

#include "kernels/matmul/float.inl"
#include "kernels/matmul/quantize.inl"
#include "kernels/matmul/scaled.inl"

template <class Format>
static constexpr auto matmul_of() {
  if constexpr (Format::kBlock == 1) {
    return &matmul_float<Format>;
  } else if constexpr (quant::ScaledFloats<Format>) {
    return &matmul_scaled<Format>;
  } else {
    return &matmul_quantized<Format>;
  }
}

static inline void fill_matmul(KernelTable& t) {
#define PYFLOW_FORMAT(name, id, block, bytes) \
  t.matmul[static_cast<size_t>(DType::name)] = matmul_of<quant::name>();
#include "quant/formats.def"
#undef PYFLOW_FORMAT
  t.quantize = quantize_row;
}
