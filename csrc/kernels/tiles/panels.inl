// y = W . x for the rows of a prompt, by bf16 tiles: an arithmetic of its own (prefill_matmul).
//
// Activations and weights are rounded to bf16 (panel_row, panel_weights.inl); 32 k after 32 k,
// ascending from +0, dot_bf16 adds them up (emulator.h). Nothing else enters an element: sums go
// through memory as f32, so cuts along rows, tiles or k change no bit.
//
// Against int8 activations with a scale for each 32 this halves the error of a product, 0.24 % to
// 0.5 % or, with outliers, 1 %. Weights with fine inputs would lose by it, and so would F16 and F32,
// which have more bits than bf16: they stay on `matmul`. BF16 weights are exact; only activations
// are rounded.
//
//   for 256 rows; for blocks of 1536 k: what is read of their panels, 768 KiB, stays in the
//                                       second-level cache
//     for pairs of tiles; for chunks of 384 k: decoded while the chunk before is multiplied
//       for 32 rows: tiles 0-3 sums, 4-5 activations, 6-7 weights

static constexpr int64_t kPanelRowsAtOnce = 256;
static constexpr int64_t kBlockK = 4 * kChunkK;
// Tiles whose sums are kept from one block of k to the next: with 256 rows 256 KiB.
static constexpr int64_t kTilesAtOnce = 16;

// One row of activations: pairs of k as panel_weights.inl has them. A NaN stays one, whatever its
// payload.
static void panel_row(const float* x, int64_t k, uint16_t* panels, int64_t r) {
  const int64_t n_blocks = (k + kPanelK - 1) / kPanelK;
  uint16_t* out = panels + (r / kPanelRows * n_blocks * kPanelRows + r % kPanelRows) * kPanelK;
  for (int64_t b = 0; b < n_blocks; ++b, out += kPanelRows * kPanelK) {
    float values[kPanelK] = {};
    const int64_t n = k - b * kPanelK < kPanelK ? k - b * kPanelK : kPanelK;
    __builtin_memcpy(values, x + b * kPanelK, static_cast<size_t>(n) * sizeof(float));
    uint32_t bits[kPanelK];
    for (int i = 0; i < kPanelK; i += 16) {
      const Lanes::F v = Lanes::load(values + i);
      const Lanes::F rounded = Lanes::bits_f(to_bf16(v)), quiet = Lanes::add(v, Lanes::zero());
      const Lanes::F infinite = Lanes::set1(__builtin_inff());
      const Lanes::F kept = Lanes::where_less(Lanes::abs(v), infinite, rounded, quiet);
      Lanes::store_i32(reinterpret_cast<int32_t*>(bits + i), Lanes::shr<16>(Lanes::bits_i(kept)));
    }
    for (int i = 0; i < kPanelK; i += 4) {
      out[i] = static_cast<uint16_t>(bits[i]);
      out[i + 1] = static_cast<uint16_t>(bits[i + 2]);
      out[i + 2] = static_cast<uint16_t>(bits[i + 1]);
      out[i + 3] = static_cast<uint16_t>(bits[i + 3]);
    }
  }
}

// The chunks of a product in order.
struct Chunks {
  int64_t begin, end;  // tiles
  int64_t k;           // rounded up to whole tiles of bf16

  Chunk first() const { return sized({begin, 0, 0, 0}); }
  Chunk next(Chunk c) const {
    const int64_t block = c.k / kBlockK * kBlockK, block_end = least(k, block + kBlockK);
    const int64_t group = c.tile - (c.tile - begin) % kTilesAtOnce;
    c.k += c.n_k;
    if (c.k < block_end) return sized(c);
    c.tile += c.n_tiles;
    c.k = block;
    if (c.tile == least(end, group + kTilesAtOnce)) {
      if (block_end < k) c.tile = group;
      c.k = block_end < k ? block_end : 0;
    }
    return sized(c);
  }

 private:
  static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
  Chunk sized(Chunk c) const {
    c.n_tiles = least(2, end - c.tile);
    c.n_k = c.n_tiles == 0 ? 0 : least(kChunkK, least(k, c.k / kBlockK * kBlockK + kBlockK) - c.k);
    return c;
  }
};

// Sums of 32 rows and two tiles: [16 rows][tile].
using PanelSums = float[4][16 * kTileRows];

// What a call writes beside its results.
struct PanelScratch {
  static constexpr int64_t kGroups = kPanelRowsAtOnce / kPanelGroup;
  alignas(64) uint8_t panels[2][2 * kChunkK / kPanelK * kPanelTile];
  alignas(64) PanelSums sums[kTilesAtOnce / 2 * kGroups + 2];  // two more for prefetches
};

template <class Body>
static inline void each_sum(Body body) {
  body.template operator()<0>();
  body.template operator()<1>();
  body.template operator()<2>();
  body.template operator()<3>();
}

// What 32 rows need of a chunk's activations, weights and results.
struct PanelStep {
  const uint16_t* activations;  // of the chunk's first k
  int64_t group_values;         // between groups of 16 rows
  const uint8_t* weights;
  int64_t n_blocks;  // of 32 k
  int64_t n_rows;    // of the 32 that there are
  bool first, last;  // of the chunks of these tiles
  float* y;
  int64_t y_stride;
};

// Multiplies N tiles of weights by 32 rows. Meanwhile queue() decodes what is due.
template <class T, int N, class Queue>
static inline void multiply_step(const PanelStep& s, PanelSums& sums, Queue queue) {
  each_sum([&]<int I>() {
    if constexpr (I % 2 < N) {
      if (s.first) {
        T::template zero<I>();
      } else {
        T::template load<I>(sums[I], 64);
      }
    }
  });
  // The sums that are loaded next, and rows of y that are about to be written.
  const auto* ahead = reinterpret_cast<const uint8_t*>(&sums + 1);
  constexpr int64_t kLines = (sizeof(PanelSums) / 64 + kChunkK / kPanelK - 1) * kPanelK / kChunkK;
  const uint16_t *a = s.activations, *a1 = a + s.group_values;
  const uint8_t *b = s.weights, *b1 = b + kChunkK / kPanelK * kPanelTile;
  for (int64_t i = 0; i < s.n_blocks; ++i) {
    T::template stream<4>(a, 64);
    T::template load<6>(b, 64);
    T::template dot_bf16<0, 4, 6>();
    if constexpr (N == 2) {
      T::template load<7>(b1, 64);
      T::template dot_bf16<1, 4, 7>();
    }
    T::template stream<5>(a1, 64);
    T::template dot_bf16<2, 5, 6>();
    if constexpr (N == 2) T::template dot_bf16<3, 5, 7>();
    if (!(s.first && s.last))
      for (int64_t j = 0; j < kLines; ++j, ahead += 64) Simd::prefetch(ahead);
    for (int64_t r = i * kLines / 2; s.last && r < (i + 1) * kLines / 2 && r < s.n_rows; ++r)
      for (int n = 0; n < N; ++n) Simd::prefetch(s.y + r * s.y_stride + n * kTileRows);
    queue();
    a += kPanelTile / 2;
    a1 += kPanelTile / 2;
    b += kPanelTile;
    b1 += kPanelTile;
  }
  const bool whole = s.last && s.n_rows >= kPanelGroup;
  each_sum([&]<int I>() {
    if constexpr (I % 2 < N) {
      if (whole) {
        T::template store<I>(s.y + I / 2 * 16 * s.y_stride + I % 2 * kTileRows, 4 * s.y_stride);
      } else {
        T::template store<I>(sums[I], 64);
      }
    }
  });
  for (int64_t r = 0; s.last && !whole && r < s.n_rows; ++r)
    for (int n = 0; n < N; ++n)
      Simd::store(s.y + r * s.y_stride + n * kTileRows,
                  Simd::load(sums[r / 16 * 2 + n] + r % 16 * kTileRows));
}

// Multiplies a chunk of N tiles by all rows, of at most kPanelRowsAtOnce. What `next` has queued is
// spread evenly over the blocks: decoding first and multiplying then reached 0.6 to 0.95 of the
// speed (Xeon with AMX).
template <class T, int N, class Weights>
static inline void multiply_chunk(const MatmulArgs& args, const Chunk& c, const uint8_t* weights,
                                  Weights& next, PanelSums* sums) {
  const int64_t n_groups = (args.n_rows + kPanelGroup - 1) / kPanelGroup;
  const int64_t group_values = (args.k + kPanelK - 1) / kPanelK * kPanelTile / 2;
  const int64_t n_blocks = c.n_k / kPanelK, todo = next.left(), steps = n_groups * n_blocks;
  int64_t due = 0;
  for (int64_t g = 0; g < n_groups; ++g) {
    const PanelStep step = {
        .activations = args.panels + 2 * g * group_values + c.k * kPanelRows,
        .group_values = group_values,
        .weights = weights,
        .n_blocks = n_blocks,
        .n_rows = args.n_rows - g * kPanelGroup,
        .first = c.k == 0,
        .last = c.k + c.n_k >= args.k,
        .y = args.y + g * kPanelGroup * args.y_stride + c.tile * kTileRows,
        .y_stride = args.y_stride,
    };
    multiply_step<T, N>(step, sums[g], [&] {
      for (due += todo; due >= steps; due -= steps) next.quarter();
    });
  }
}

static inline TileConfig whole_tiles() {
  TileConfig config;
  for (int i = 0; i < kTiles; ++i) {
    config.rows[i] = 16;
    config.row_bytes[i] = 64;
  }
  return config;
}

template <class T, class Weights>
PYFLOW_WHOLE static void multiply_panels(const MatmulArgs& args, int64_t tile_begin,
                                         int64_t tile_end) {
  auto& [panels, sums] = *reinterpret_cast<PanelScratch*>(args.scratch);
  Weights weights(args);
  const Chunks chunks = {tile_begin, tile_end, (args.k + kPanelK - 1) / kPanelK * kPanelK};
  T::config(whole_tiles());
  Chunk now = chunks.first();
  if (now.n_k > 0) weights.start(now, panels[0]);
  while (weights.left() > 0) weights.quarter();
  for (int buffer = 0; now.n_k > 0; buffer ^= 1) {
    const Chunk after = chunks.next(now);
    if (after.n_k > 0) weights.start(after, panels[buffer ^ 1]);
    // Where all k are one block, no sum outlives a pair of tiles.
    const int64_t pair = args.k > kBlockK ? (now.tile - tile_begin) % kTilesAtOnce / 2 : 0;
    PanelSums* of_pair = sums + pair * PanelScratch::kGroups;
    if (now.n_tiles == 2)
      multiply_chunk<T, 2>(args, now, panels[buffer], weights, of_pair);
    else
      multiply_chunk<T, 1>(args, now, panels[buffer], weights, of_pair);
    now = after;
  }
  T::release();
}

template <class T, class Weights>
static void matmul_panels(const MatmulArgs& args, int64_t tile_begin, int64_t tile_end) {
  for (int64_t r = 0; r < args.n_rows; r += kPanelRowsAtOnce) {
    MatmulArgs part = args;
    part.n_rows = args.n_rows - r < kPanelRowsAtOnce ? args.n_rows - r : kPanelRowsAtOnce;
    part.panels += r * ((args.k + kPanelK - 1) / kPanelK * kPanelK);
    part.y += r * args.y_stride;
    multiply_panels<T, Weights>(part, tile_begin, tile_end);
  }
}
