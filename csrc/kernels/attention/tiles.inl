// The two products of attention, scores = q . k and out = p . v, are one loop: every (row, head)
// pair p adds coefficient[p][i] * row_i to its accumulators, with i ascending and one fma each. For
// scores i runs over dims and row_i is that dim of many cells; for values i runs over cells and
// row_i is the dims of one. The tile's shape changes no bit, so it is chosen to fit the registers.
#include "kernels/attention/kv_cells.inl"

inline constexpr int kPairTile = 6;    // pairs that share a load of keys or values
inline constexpr int64_t kChunk = 64;  // dims converted to f32 at a time: 16 KiB of values
// A block's lanes in scratch. Whole vectors are stored even for fewer lanes: the excess is
// overwritten by the next piece or falls into the last sixteen.
inline constexpr int64_t kLaneStride = kLogicalBlock + 16;

// Cells with consecutive positions in consecutive slots of one block of sixteen.
struct Piece {
  int64_t slot;
  int64_t lane;  // position % kLogicalBlock
  int64_t n;
};

// Rows of a product: at(i, v) is the v-th vector of row i, skip(n) drops the first n rows. fetch(i,
// v) prefetches the same place in the next block, `ahead` bytes on if its slots follow.
static inline void fetch_ahead(const void* p, int64_t nbytes) {
  Simd::prefetch(static_cast<const char*>(p) + nbytes);
}
struct ScratchRows {
  const float* p;
  int64_t stride;
  void fetch(int64_t, int64_t) const {}
  Simd::F at(int64_t i, int64_t v) const { return Simd::load(p + i * stride + v * 16); }
  ScratchRows skip(int64_t n) const { return {p + n * stride, stride}; }
};
struct KeyRowsF16 {
  const uint16_t* const* pieces;
  int64_t ahead;
  void fetch(int64_t i, int64_t v) const {
    if (i % 2 == 0) fetch_ahead(pieces[v] + i * 16, ahead);
  }
  Simd::F at(int64_t i, int64_t v) const { return Simd::load_f16(pieces[v] + i * 16); }
};
struct KeyRowsQ8 {
  const int8_t* const* pieces;
  const float* d;
  int64_t ahead;
  void fetch(int64_t i, int64_t v) const {
    if (i % 4 == 0) fetch_ahead(pieces[v] + i * 16, ahead);
  }
  Simd::F at(int64_t i, int64_t v) const {
    return Simd::mul(Simd::load(d + v * 16), Simd::load_i8f(pieces[v] + i * 16));
  }
};
struct ValueRowsF16 {
  const uint16_t* p;
  int64_t stride;
  const int32_t* slots;
  void fetch(int64_t i, int64_t v) const {
    if (v % 2 == 0) fetch_ahead(p + slots[i] * stride + v * 16, 2 * kLogicalBlock * stride);
  }
  Simd::F at(int64_t i, int64_t v) const { return Simd::load_f16(p + slots[i] * stride + v * 16); }
  ValueRowsF16 skip(int64_t n) const { return {p, stride, slots + n}; }
};
struct ValueRowsQ8 {
  const ValueQ8* p;
  int64_t stride;
  const int32_t* slots;
  void fetch(int64_t i, int64_t v) const {
    const int64_t ahead = static_cast<int64_t>(sizeof(ValueQ8)) * kLogicalBlock * stride;
    if (v % 2 == 0) fetch_ahead(p + slots[i] * stride + v / 2, ahead);
  }
  // d * q is exact: 11 bits times 7.
  Simd::F at(int64_t i, int64_t v) const {
    const ValueQ8& b = p[slots[i] * stride + v / 2];
    return Simd::mul(Simd::set1_f16(&b.d), Simd::load_i8f(b.q + v % 2 * 16));
  }
  ValueRowsQ8 skip(int64_t n) const { return {p, stride, slots + n}; }
};

template <int P, int V, class Rows>
static inline void fma_tile(const float* const* coefficients, const Rows& rows, int64_t n,
                            float* const* sums, bool fresh, int64_t v0) {
  using S = Simd;
  const float* c[P];
  S::F sum[P][V];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) {
    c[p] = coefficients[p];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) sum[p][v] = fresh ? S::zero() : S::load(sums[p] + (v0 + v) * 16);
  }
  for (int64_t i = 0; i < n; ++i) {
    S::F row[V];
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) {
      rows.fetch(i, v0 + v);
      row[v] = rows.at(i, v0 + v);
    }
#pragma GCC unroll 8
    for (int p = 0; p < P; ++p) {
      const S::F x = S::set1(c[p][i]);
#pragma GCC unroll 8
      for (int v = 0; v < V; ++v) sum[p][v] = S::fma(x, row[v], sum[p][v]);
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p)
#pragma GCC unroll 8
    for (int v = 0; v < V; ++v) S::store(sums[p] + (v0 + v) * 16, sum[p][v]);
}

template <int P, int V, class Rows>
static inline void fma_columns(const float* const* coefficients, const Rows& rows, int64_t n,
                               float* const* sums, bool fresh, int64_t v0, int64_t n_vectors) {
  if constexpr (P * V <= Simd::kAccumulators || V == 1)
    for (; v0 + V <= n_vectors; v0 += V) fma_tile<P, V>(coefficients, rows, n, sums, fresh, v0);
  if constexpr (V > 1) fma_columns<P, V / 2>(coefficients, rows, n, sums, fresh, v0, n_vectors);
}

// Fresh sums start from zero. Pairs are taken by six, four, three, two and one, as registers allow.
template <int P = kPairTile, class Rows>
static void fma_pairs(int64_t n_pairs, const float* const* coefficients, const Rows& rows,
                      int64_t n, float* const* sums, bool fresh, int64_t n_vectors) {
  if constexpr (P <= Simd::kAccumulators)
    for (; n_pairs >= P; n_pairs -= P, coefficients += P, sums += P)
      fma_columns<P, 4>(coefficients, rows, n, sums, fresh, 0, n_vectors);
  if constexpr (P > 1)
    fma_pairs<P == 6 ? 4 : P - 1>(n_pairs, coefficients, rows, n, sums, fresh, n_vectors);
}

// keys[d][lane] of dims [d0, d0 + n_dims) as f32. A piece that starts inside its sixteen slots is
// read from there on, still sixteen cells; the excess of the last dim could lie outside the cache,
// so that dim is copied first.
static void convert_keys(const KvView& kv, int64_t head, const Piece* pieces, int64_t n_pieces,
                         int64_t d0, int64_t n_dims, float* keys) {
  using S = Simd;
  for (const Piece* piece = pieces; piece < pieces + n_pieces; ++piece) {
    const int64_t skip = piece->slot % 16, whole = skip ? n_dims - 1 : n_dims;
    float* to = keys + piece->lane;
    if (kv.type == CacheType::F16) {
      const uint16_t* from = key_f16(kv, piece->slot, head) + d0 * 16 + skip;
      for (int64_t d = 0; d < whole; ++d)
        S::store(to + d * kLaneStride, S::load_f16(from + d * 16));
      if (skip) {
        uint16_t last[16] = {};
        for (int64_t i = 0; i < 16 - skip; ++i) last[i] = from[whole * 16 + i];
        S::store(to + whole * kLaneStride, S::load_f16(last));
      }
    } else {
      const KeyQ8* block = key_q8(kv, piece->slot, head) + d0 / 32;
      for (int64_t d = 0; d < n_dims; d += 32, ++block) {
        const S::F scale = S::load_f16(block->d + skip);
        const int8_t* q = block->q + skip;
        for (int64_t j = 0; j < 32; ++j) {
          int8_t last[16] = {};
          const bool copy = skip && d + j == whole;
          for (int64_t i = 0; copy && i < 16 - skip; ++i) last[i] = q[j * 16 + i];
          S::store(to + (d + j) * kLaneStride,
                   S::mul(scale, S::load_i8f(copy ? last : q + j * 16)));
        }
      }
    }
  }
}

// values[cell][d] of dims [d0, d0 + 16 * n_vectors) as f32, cells in the order of `slots`.
template <class Rows>
static void convert_values(const Rows& rows, int64_t n, int64_t n_vectors, float* values) {
  for (int64_t i = 0; i < n; ++i)
    for (int64_t v = 0; v < n_vectors; ++v)
      Simd::store(values + i * kChunk + v * 16, rows.at(i, v));
}

// Sixteen rows of sixteen floats to columns: four times row i and row i + 8 are shuffled like cards.
static inline void transpose(const float* from, int64_t stride, float* to, int64_t to_stride) {
  using S = Simd;
  S::F rows[16], next[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) rows[i] = S::load(from + i * stride);
#pragma GCC unroll 4
  for (int round = 0; round < 4; ++round) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      next[2 * i] = S::zip_lo(rows[i], rows[i + 8]);
      next[2 * i + 1] = S::zip_hi(rows[i], rows[i + 8]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) rows[i] = next[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) S::store(to + i * to_stride, rows[i]);
}

// values[lane][d] of keys[d][lane], for lanes of vectors [first, last].
[[maybe_unused]] static void turn_keys(const float* keys, int64_t n_dims, int64_t first,
                                       int64_t last, float* values) {
  for (int64_t v = first; v <= last; ++v)
    for (int64_t d = 0; d < n_dims; d += 16)
      transpose(keys + d * kLaneStride + v * 16, kLaneStride, values + v * 16 * kChunk + d, kChunk);
}
