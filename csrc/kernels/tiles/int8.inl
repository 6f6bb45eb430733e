// y = W . x by int8 tiles for many rows: the sums of matmul.inl, bit for bit.
//
// A step is one group of rows, 64 k and two tiles of weights. Tiles make its integer dots (2 x 2
// tiles, or 4 x 2 for sub-blocks of 16), which go through memory; vectors scale them while the dots
// of the next step are made. A tile that was just made is never stored: tiles are not renamed, so of
// the four tiles of sums two are stored while two are made.
//
// kMagicBits are added to integers (magic.inl): the addition takes an integer port that is free, a
// conversion would take one that fma and tiles wait for. If an s, times magic, is not finite, `odd`
// sends both tiles to the base table.
//
//   for 256 rows; for pairs of tiles
//     for chunks of 256 k: decoded while the chunk before is multiplied, across pairs too
//       for 16 rows, for 64 k: a step

#include "kernels/matmul/magic.inl"

static constexpr int kTileGroup = 16;     // rows
static constexpr int kLeastTileRows = 8;  // fewer are not faster than by the base table
static constexpr int kTileFrom = 16;      // rows from which tiles are used at all
// Sums of 256 rows and two tiles are 32 KiB.
static constexpr int64_t kGroupsAtOnce = 16;
static constexpr int kTilePieces = 4;  // of 64 k, decoded at once: 8 KiB of two tiles

// A chunk of two tiles, decoded.
template <class Format>
struct TileWeights {
  static constexpr int kSubs = 64 / Format::kSubBlock;
  alignas(64) uint8_t lines[2][kTilePieces * 1024];
  alignas(64) float s[2][kTilePieces * kSubs][kTileRows];
  alignas(64) float m[2][Format::kMinimum ? kTilePieces * kSubs : 1][kTileRows];
  alignas(64) float odd[kTileRows];  // NaN if a scale, times magic, or a minimum is not finite
};

using Dots = int32_t[kTileGroup][kTileRows];

// What a call writes beside its results.
template <class Format>
struct TileScratch {
  TileWeights<Format> weights[2];
  alignas(64) Dots dots[2][TileWeights<Format>::kSubs][2];
  alignas(64) float sums[kGroupsAtOnce * kTileGroup][2 * kTileRows];
};

template <class Format, int Q>
static inline void decode_lines(const uint8_t* piece, uint8_t* lines) {
  Lanes::B quads[4];
  Format::template weights<Lanes, Q>(piece, quads);
  PYFLOW_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    Lanes::B w = quads[i];
    if constexpr (!Format::kSigned) {
      if constexpr (Format::kOffset != 0) w = Lanes::bsub(w, Lanes::bset1(Format::kOffset));
    } else if constexpr (Format::kMinimum) {
      static_assert(Format::kOffset == -128);  // unsigned bytes: dot_su8
      w = Lanes::bxor(w, Lanes::bset1(0x80));
    }
    Lanes::store_i32(reinterpret_cast<int32_t*>(lines + 256 * Q + 64 * i), Lanes::as_i(w));
  }
}

// A queue of the quarters (16 k) of a chunk: tile after tile, k ascending.
template <class Format>
class TileQueue {
 public:
  explicit TileQueue(const MatmulArgs& args) : args_(args) {}

  int left() const { return end_ - at_; }

  // Begins with pieces [kb, kb + n_pieces) of tiles t and t + 1.
  void start(int64_t t, int64_t kb, int n_pieces, TileWeights<Format>& out) {
    const int64_t n_kb = (args_.k + kActBlock - 1) / kActBlock,
                  n_units = (n_kb + Format::kPieces - 1) / Format::kPieces;
    for (int tile = 0; tile < 2; ++tile)
      units_[tile] =
          args_.tiles + ((t + tile) * n_units + kb / Format::kPieces) * Format::kUnitBytes;
    out_ = &out;
    Lanes::store(out.odd, Lanes::zero());
    at_ = 0;
    of_tile_ = 4 * n_pieces;
    end_ = 2 * of_tile_;
  }

  void quarter() {
    const int tile = at_ >= of_tile_, i = at_++ - tile * of_tile_, piece = i / 4;
    const uint8_t* unit = units_[tile] + piece / Format::kPieces * Format::kUnitBytes;
    const uint8_t* at = unit + Format::kScaleBytes + piece % Format::kPieces * Format::kPieceBytes;
    uint8_t* lines = out_->lines[tile] + 1024 * piece;
    if (i % 4 == 0) {
      if (piece % Format::kPieces == 0) scales(unit, tile, piece);
      decode<0>(at, lines);
    } else if (i % 4 == 1) {
      decode<1>(at, lines);
    } else if (i % 4 == 2) {
      decode<2>(at, lines);
    } else {
      decode<3>(at, lines);
    }
  }

 private:
  void scales(const uint8_t* unit, int tile, int piece) {
    constexpr int kSubs = TileWeights<Format>::kSubs, kScales = Format::kPieces * kSubs;
    Lanes::F s[kScales], m[kScales], odd = Lanes::load(out_->odd);
    Format::template scales<Lanes>(unit, s, m);
    PYFLOW_UNROLL(16)
    for (int j = 0; j < kScales; ++j) {
      Lanes::store(out_->s[tile][piece * kSubs + j], s[j]);
      odd = Lanes::fma(Lanes::mul(s[j], Lanes::set1(2 * kMagic)), Lanes::zero(), odd);
      if constexpr (Format::kMinimum) {
        Lanes::store(out_->m[tile][piece * kSubs + j], m[j]);
        odd = Lanes::fma(m[j], Lanes::zero(), odd);
      }
    }
    Lanes::store(out_->odd, odd);
  }

  template <int Q>
  static void decode(const uint8_t* piece, uint8_t* lines) {
    prefetch_quarter<Format, Prefetch::kFar, Q>(piece);
    decode_lines<Format, Q>(piece, lines);
  }

  const MatmulArgs& args_;
  const uint8_t* units_[2] = {};
  TileWeights<Format>* out_ = nullptr;
  int at_ = 0, end_ = 0, of_tile_ = 0;
};

// The dots of a chunk of pieces, step after step: for each group of rows, for each piece.
template <class Format, class T>
struct TileDots {
  static constexpr int kSub = Format::kSubBlock, kSubs = 64 / kSub;

  const TileWeights<Format>& weights;
  const ActBlock* acts;  // of the first piece
  int64_t group_blocks;  // between groups
  int rows, pieces;
  Dots (&dots)[2][kSubs][2];

  int64_t group = 0;
  int piece = 0, buffer = 0;
  Dots* made = dots[1][kSubs - 1];  // where the tiles that were made last are to go

  // Half H of the next step's sub-blocks.
  template <int H>
  void half() {
    if constexpr (kSubs == 2) {
      sub_block<H>();
    } else {
      sub_block<2 * H>();
      sub_block<2 * H + 1>();
    }
  }
  // Stores the tiles that were made last.
  void finish() {
    T::template store<2>(made[0], 64);
    T::template store<3>(made[1], 64);
  }

 private:
  template <int C, int A, int B>
  static void dot() {
    T::template zero<C>();
    if constexpr (Format::kSigned && Format::kMinimum) {
      T::template dot_su8<C, A, B>();
    } else {
      T::template dot_s8<C, A, B>();
    }
  }
  template <int J>
  void sub_block() {
    const uint8_t* lines = weights.lines[0] + 1024 * piece + 16 * kSub * J;
    const int8_t* a = acts[group * group_blocks + piece * rows].q + kSub * J;
    T::template load<6>(lines, 64);
    T::template load<7>(lines + kTilePieces * 1024, 64);
    if constexpr (J % 2 == 0) {
      T::template load<4>(a, sizeof(ActBlock));
      dot<0, 4, 6>();
      dot<1, 4, 7>();
      finish();
    } else {
      T::template load<5>(a, sizeof(ActBlock));
      dot<2, 5, 6>();
      dot<3, 5, 7>();
      T::template store<0>(made[0], 64);
      T::template store<1>(made[1], 64);
    }
    made = dots[buffer][J];
    if constexpr (J == kSubs - 1) {
      buffer ^= 1;
      if (++piece == pieces) {
        piece = 0;
        ++group;
      }
    }
  }
};

// Scales of a step: of its sub-blocks, for two tiles.
template <class Format>
struct StepScales {
  static constexpr int kSubs = 64 / Format::kSubBlock;
  Lanes::F s[kSubs][2], z[kSubs][2], m[kSubs][2];

  StepScales(const TileWeights<Format>& w, int piece) {
    PYFLOW_UNROLL(8)
    for (int i = 0; i < 2 * kSubs; ++i) {
      const int j = i / 2, tile = i % 2, at = piece * kSubs + j;
      s[j][tile] = Lanes::load(w.s[tile][at]);
      z[j][tile] = Lanes::mul(s[j][tile], Lanes::set1(-kMagic));
      if constexpr (Format::kMinimum) m[j][tile] = Lanes::load(w.m[tile][at]);
    }
  }

  // t of matmul.inl for half H of row r.
  template <int H>
  Lanes::F scaled(const Dots (*dots)[2], int tile, int r, const ActBlock& a) const {
    constexpr int kFirst = H * kSubs / 2;
    const Lanes::I magic = Lanes::iset1(kMagicBits);
    const Lanes::I first = Lanes::load_i32(dots[kFirst][tile][r]);
    Lanes::F t =
        Lanes::fma(s[kFirst][tile], Lanes::bits_f(Lanes::iadd(magic, first)), z[kFirst][tile]);
    if constexpr (kSubs == 4)
      t = Lanes::fma(s[kFirst + 1][tile], Lanes::to_f(Lanes::load_i32(dots[kFirst + 1][tile][r])),
                     t);
    if constexpr (Format::kMinimum) {
      PYFLOW_UNROLL(2)
      for (int j = kFirst; j < kFirst + kSubs / 2; ++j) {
        const Lanes::F sum =
            kSubs == 2 ? Lanes::set1(a.fsum32[j % 2]) : Lanes::to_f(Lanes::iset1(a.sum16[j]));
        t = Lanes::fma(m[j][tile], sum, t);
      }
    }
    return t;
  }
};

// Adds rows [from, to) of a step to their sums, 16 of each tile.
template <class Format>
static inline void add_rows(const StepScales<Format>& x, const Dots (*dots)[2], int from, int to,
                            const ActBlock* a, float (*sums)[2 * kTileRows]) {
  PYFLOW_UNROLL(4)
  for (int r = from; r < to; ++r) {
    PYFLOW_UNROLL(2)
    for (int tile = 0; tile < 2; ++tile) {
      float* sum = sums[r] + tile * kTileRows;
      Lanes::F acc = Lanes::load(sum);
      acc = Lanes::fma(x.template scaled<0>(dots, tile, r, a[r]), Lanes::set1(a[r].scale[0]), acc);
      acc = Lanes::fma(x.template scaled<1>(dots, tile, r, a[r]), Lanes::set1(a[r].scale[1]), acc);
      Lanes::store(sum, acc);
    }
  }
}

// Multiplies a chunk by n_groups groups of rows. What is queued is spread evenly over the steps.
template <class Format, class T>
static inline void multiply_pieces(TileDots<Format, T>& next, int64_t n_groups,
                                   TileQueue<Format>& queue, float (*sums)[2 * kTileRows]) {
  const int64_t steps = n_groups * next.pieces, todo = queue.left();
  int64_t due = 0;
  const auto decode = [&] {
    for (due += todo; due >= 2 * steps; due -= 2 * steps) queue.quarter();
  };
  next.template half<0>();
  next.template half<1>();
  int64_t group = 0;
  int piece = 0;
  for (int64_t i = 0; i < steps; ++i) {
    const StepScales<Format> scales(next.weights, piece);
    const ActBlock* a = next.acts + group * next.group_blocks + piece * next.rows;
    const Dots(*dots)[2] = next.dots[i % 2];
    if (i + 1 < steps)
      next.template half<0>();
    else
      next.finish();
    decode();
    add_rows<Format>(scales, dots, 0, next.rows / 2, a, sums + group * kTileGroup);
    if (i + 1 < steps) next.template half<1>();
    decode();
    add_rows<Format>(scales, dots, next.rows / 2, next.rows, a, sums + group * kTileGroup);
    if (++piece == next.pieces) {
      piece = 0;
      ++group;
    }
  }
}

// Rows of a pass: n_groups groups of `rows` rows from `first`, the first row of a panel. They are
// whole groups, or one of fewer rows.
struct TileRows {
  int64_t first, n_groups;
  int rows;
  int64_t n() const { return n_groups * rows; }
};

template <class Format>
static inline TileConfig tile_config(int rows) {
  TileConfig config;
  for (int i = 0; i < kTiles; ++i) {
    config.rows[i] = static_cast<uint8_t>(i < 6 ? rows : Format::kSubBlock / 4);
    config.row_bytes[i] = i == 4 || i == 5 ? Format::kSubBlock : 64;
  }
  return config;
}

// The chunks of a pass in order.
struct TileChunk {
  int64_t tile, kb, n_kb;

  int pieces() const { return static_cast<int>(n_kb - kb < kTilePieces ? n_kb - kb : kTilePieces); }
  TileChunk next() const {
    return kb + kTilePieces < n_kb ? TileChunk{tile, kb + kTilePieces, n_kb}
                                   : TileChunk{tile + 2, 0, n_kb};
  }
};

// The sums of a pair of tiles to y; then they are zeros.
static inline void finish_tiles(const MatmulArgs& args, int64_t t, const TileRows& rows,
                                float (*sums)[2 * kTileRows]) {
  for (int64_t r = 0; r < rows.n(); ++r)
    for (int tile = 0; tile < 2; ++tile) {
      float* sum = sums[r] + tile * kTileRows;
      Lanes::store(args.y + (rows.first + r) * args.y_stride + (t + tile) * kTileRows,
                   Lanes::add(Lanes::load(sum), Lanes::zero()));
      Lanes::store(sum, Lanes::zero());
    }
}

// The base table's product for rows from `first`, the first of a panel.
template <DType D>
static inline void multiply_by_base(const MatmulArgs& args, int64_t first, int64_t n_rows,
                                    int64_t tile_begin, int64_t tile_end) {
  MatmulArgs part = args;
  part.acts += first * ((args.k + kActBlock - 1) / kActBlock);
  part.n_rows = n_rows;
  part.y += first * args.y_stride;
  base_table->matmul[static_cast<size_t>(D)](part, tile_begin, tile_end);
}

// Pairs of tiles [begin, end) by the rows of a pass.
template <DType D, class Format, class T>
PYFLOW_WHOLE static void multiply_pass(const MatmulArgs& args, const TileRows& rows, int64_t begin,
                                       int64_t end) {
  const int64_t n_kb = (args.k + kActBlock - 1) / kActBlock;
  auto& [weights, dots, sums] = *reinterpret_cast<TileScratch<Format>*>(args.scratch);
  for (int64_t r = 0; r < rows.n(); ++r)
    for (int tile = 0; tile < 2; ++tile) Lanes::store(sums[r] + tile * kTileRows, Lanes::zero());
  T::config(tile_config<Format>(rows.rows));
  TileQueue<Format> queue(args);
  TileChunk now = {begin, 0, n_kb};
  queue.start(now.tile, now.kb, now.pieces(), weights[0]);
  while (queue.left() > 0) queue.quarter();
  Lanes::F odd = Lanes::zero();
  for (int buffer = 0; now.tile < end; buffer ^= 1) {
    const TileChunk after = now.next();
    if (after.tile < end) queue.start(after.tile, after.kb, after.pieces(), weights[buffer ^ 1]);
    TileDots<Format, T> next = {.weights = weights[buffer],
                                .acts = args.acts + rows.first * n_kb + now.kb * rows.rows,
                                .group_blocks = kTileGroup * n_kb,
                                .rows = rows.rows,
                                .pieces = now.pieces(),
                                .dots = dots};
    multiply_pieces<Format, T>(next, rows.n_groups, queue, sums);
    odd = Lanes::add(odd, Lanes::load(weights[buffer].odd));
    if (after.tile != now.tile) {
      finish_tiles(args, now.tile, rows, sums);
      if (Lanes::reduce_add(odd) != 0.0f)
        multiply_by_base<D>(args, rows.first, rows.n(), now.tile, now.tile + 2);
      odd = Lanes::zero();
    }
    now = after;
  }
  T::release();
}

template <DType D, class Format, class T>
static void matmul_tiles(const MatmulArgs& args, int64_t tile_begin, int64_t tile_end) {
  const int64_t n_pairs = args.n_rows < kTileFrom ? 0 : (tile_end - tile_begin) / 2;
  const int64_t end = tile_begin + 2 * n_pairs;  // of whole pairs
  if (n_pairs > 0) {
    const int64_t n_groups = args.n_rows / kTileGroup, whole = n_groups * kTileGroup;
    const int rest = static_cast<int>(args.n_rows - whole);
    for (int64_t g = 0; g < n_groups; g += kGroupsAtOnce) {
      const int64_t n = n_groups - g < kGroupsAtOnce ? n_groups - g : kGroupsAtOnce;
      multiply_pass<D, Format, T>(args, {g * kTileGroup, n, kTileGroup}, tile_begin, end);
    }
    if (rest >= kLeastTileRows)
      multiply_pass<D, Format, T>(args, {whole, 1, rest}, tile_begin, end);
    else if (rest != 0)
      multiply_by_base<D>(args, whole, rest, tile_begin, end);
  }
  if (end < tile_end) multiply_by_base<D>(args, 0, args.n_rows, end, tile_end);
}
