// The (row, head) pairs that are computed together, and their running result over blocks.
#include "kernels/attention/block.inl"

// A multiple of 16. Converting a block costs as much as computing five pairs with it.
inline constexpr int64_t kMaxPairs = 64;
inline constexpr int64_t kStateFloats = 16384;  // 64 KiB of unfinished outputs, well inside L2
static_assert(kMaxHeadDim <= kStateFloats, "one pair must fit");
// With more pieces, converting keys costs less than a whole vector per piece and pair.
inline constexpr int64_t kMaxDirectPieces = 8;

// The row sees cells [begin, end) of a block.
struct Share {
  int64_t row, begin, end;
};

// Pair row * n_heads + h is row `row_begin + row` of the arguments and head `head + h`.
class Pairs {
 public:
  Pairs(const AttendArgs& args, int64_t row_begin, int64_t n_rows, int64_t kv_head, int64_t head,
        int64_t n_heads)
      : args_(args),
        key_dim_(args.kv.key_dim),
        value_dim_(args.kv.value_dim),
        kv_head_(kv_head),
        head_(head),
        row_begin_(row_begin),
        n_heads_(n_heads),
        n_pairs_(n_rows * n_heads),
        q_(args.q + row_begin * args.q_stride + head * args.kv.key_dim) {
    reset();
  }

  void reset() {
    for (int64_t p = 0; p < kMaxPairs; ++p) m_[p] = -__builtin_inff(), l_[p] = 0.0f;
    for (int64_t i = 0; i < n_pairs_ * value_dim_; i += 16) Simd::store(out_ + i, Simd::zero());
  }
  float* m() { return m_; }
  float* l() { return l_; }
  float* out(int64_t pair) { return out_ + pair * value_dim_; }

  // Computes the rows' shares of one block.
  void attend_block(const RowView& cells, const Share* shares, int64_t n_shares) {
    Block block;
    describe(cells, block);
    n_seen_ = 0;
    for (const Share* s = shares; s < shares + n_shares; ++s)
      for (int64_t h = 0; h < n_heads_; ++h)
        seen_[n_seen_++] = {s->row * n_heads_ + h,
                            s->begin,
                            s->end,
                            block.lane(s->begin),
                            block.lane(s->end - 1),
                            q_ + s->row * args_.q_stride + h * key_dim_,
                            {head_ + h, args_.slopes ? args_.slopes[head_ + h] : 0.0f,
                             ahead(cells.positions[0], s->row)}};
    const bool direct = n_shares == 1 && block.n_pieces <= kMaxDirectPieces;
    if (direct)
      score_direct(block);
    else
      score_converted(block);

    const int64_t n = n_seen_;
    float m[kMaxPairs], l[kMaxPairs], mb[kMaxPairs], lb[kMaxPairs];
    float keep[kMaxPairs], take[kMaxPairs];
    const float* weights[kMaxPairs];
    for (int64_t p = 0; p < n; ++p)
      mb[p] = finish_scores(args_, block, seen_[p].first, seen_[p].last, seen_[p].at, scores_[p]);
    for (int64_t p = 0; p < n; ++p) {
      lb[p] = weigh(seen_[p].first, seen_[p].last, mb[p], scores_[p]);
      weights[p] = by_cell(block, scores_[p]);
      m[p] = m_[seen_[p].pair], l[p] = l_[seen_[p].pair];
    }
    for (int64_t p = n; p % 16; ++p) m[p] = l[p] = mb[p] = lb[p] = 0.0f;
    merge_weights(n, m, l, mb, lb, keep, take);
    for (int64_t p = 0; p < n; ++p) m_[seen_[p].pair] = m[p], l_[seen_[p].pair] = l[p];

    const int64_t n_values = args_.kv.n_kv_heads * value_dim_;
    for (int64_t d = 0; d < value_dim_; d += kChunk) {
      const int64_t n_dims = value_dim_ - d < kChunk ? value_dim_ - d : kChunk;
      const Outputs o = {weights, keep, take, d, n_dims / 16};
      if (args_.kv.values_in_keys) {
        add_rows(values_of_keys(block, d, n_dims), o);
      } else if (args_.kv.type == CacheType::F16) {
        const ValueRowsF16 rows = {value_f16(args_.kv, 0, kv_head_) + d, n_values, cells.slots};
        add_values(rows, cells.n, direct, o);
      } else {
        const ValueRowsQ8 rows = {value_q8(args_.kv, 0, kv_head_) + d / 32, n_values / 32,
                                  cells.slots};
        add_values(rows, cells.n, direct, o);
      }
    }
  }

 private:
  // A pair's share of a block: its cells, their first and last lane, and its query.
  struct Seen {
    int64_t pair, begin, end, first, last;
    const float* q;
    Distances at;
  };

  // By how much the block of a position begins after the row, whose last cell is its own.
  float ahead(int64_t position, int64_t row) const {
    const RowView& all = args_.views[row_begin_ + row];
    return static_cast<float>(position / kLogicalBlock * kLogicalBlock - all.positions[all.n - 1]);
  }

  // Computes scores directly from the cache, sixteen slots at a time, then moves them to their
  // lanes.
  void score_direct(const Block& block) {
    const KvView& kv = args_.kv;
    const Piece* pieces = block.pieces;
    const int64_t n_pieces = block.n_pieces;
    alignas(64) float by_slot[kPairTile][kMaxDirectPieces * 16 + 16];
    alignas(64) float d[kMaxDirectPieces * 16];
    const int64_t ahead = key_nbytes(kv, kLogicalBlock);
    const uint16_t* f16[kMaxDirectPieces];
    const int8_t* q8[kMaxDirectPieces];
    for (int64_t p0 = 0; p0 < n_seen_; p0 += kPairTile) {
      const int64_t n = n_seen_ - p0 < kPairTile ? n_seen_ - p0 : kPairTile;
      float* sums[kPairTile];
      for (int64_t p = 0; p < n; ++p) {
        sums[p] = by_slot[p];
        Simd::store(sums[p] + n_pieces * 16, Simd::zero());  // what the last piece's move runs into
      }
      // Q8_0 has a scale per 32 dims.
      const int64_t step = kv.type == CacheType::F16 ? key_dim_ : 32;
      for (int64_t d0 = 0; d0 < key_dim_; d0 += step) {
        const float* coefficients[kPairTile];
        for (int64_t p = 0; p < n; ++p) coefficients[p] = seen_[p0 + p].q + d0;
        if (kv.type == CacheType::F16) {
          for (int64_t i = 0; i < n_pieces; ++i) f16[i] = key_f16(kv, pieces[i].slot, kv_head_);
          fma_pairs(n, coefficients, KeyRowsF16{f16, ahead}, step, sums, true, n_pieces);
        } else {
          for (int64_t i = 0; i < n_pieces; ++i) {
            const KeyQ8* keys = key_q8(kv, pieces[i].slot, kv_head_) + d0 / 32;
            q8[i] = keys->q;
            Simd::store(d + i * 16, Simd::load_f16(keys->d));
          }
          fma_pairs(n, coefficients, KeyRowsQ8{q8, d, ahead}, step, sums, d0 == 0, n_pieces);
        }
      }
      for (int64_t p = 0; p < n; ++p)
        for (int64_t i = 0; i < n_pieces; ++i)
          Simd::store(scores_[p0 + p] + pieces[i].lane,
                      Simd::load(by_slot[p] + i * 16 + (pieces[i].slot & 15)));
    }
  }

  // Converts keys to f32 in the order of the lanes, once for all pairs.
  void score_converted(const Block& block) {
    for (int64_t d = 0; d < key_dim_; d += kChunk) {
      const int64_t n_dims = key_dim_ - d < kChunk ? key_dim_ - d : kChunk;
      convert_keys(args_.kv, kv_head_, block.pieces, block.n_pieces, d, n_dims, scratch_);
      for (int64_t p0 = 0; p0 < n_seen_; p0 += kPairTile) {
        const int64_t n = n_seen_ - p0 < kPairTile ? n_seen_ - p0 : kPairTile;
        int64_t first = kLogicalBlock, last = 0;  // of the lanes that one of these pairs needs
        for (int64_t p = p0; p < p0 + n; ++p) {
          first = seen_[p].first < first ? seen_[p].first : first;
          last = seen_[p].last > last ? seen_[p].last : last;
        }
        const int64_t v = first / 16;
        const float* coefficients[kPairTile];
        float* sums[kPairTile];
        for (int64_t p = 0; p < n; ++p) {
          coefficients[p] = seen_[p0 + p].q + d;
          sums[p] = scores_[p0 + p] + v * 16;
        }
        fma_pairs(n, coefficients, ScratchRows{scratch_ + v * 16, kLaneStride}, n_dims, sums,
                  d == 0, last / 16 - v + 1);
      }
    }
  }

  // The values of a block's cells that are dims [d, d + n_dims) of its keys.
  ScratchRows values_of_keys(const Block& block, int64_t d, int64_t n_dims) {
    const int64_t n = block.cells.n, first = block.lane(0);
    convert_keys(args_.kv, kv_head_, block.pieces, block.n_pieces, d, n_dims, keys_);
    turn_keys(keys_, n_dims, first / 16, block.lane(n - 1) / 16, scratch_);
    if (block.gapless) return {scratch_ + first * kChunk, kChunk};
    for (int64_t i = 0; i < n; ++i)  // closes the gaps; a cell's lane is no less than its number
      for (int64_t j = 0; j < n_dims; j += 16)
        Simd::store(scratch_ + i * kChunk + j, Simd::load(scratch_ + block.lane(i) * kChunk + j));
    return {scratch_, kChunk};
  }

  struct Outputs {
    const float* const* weights;
    const float *keep, *take;
    int64_t d, n_vectors;
  };

  template <class Rows>
  void add_values(const Rows& rows, int64_t n, bool direct, const Outputs& o) {
    if (direct) return add_rows(rows, o);
    convert_values(rows, n, o.n_vectors, scratch_);
    add_rows(ScratchRows{scratch_, kChunk}, o);
  }

  // Cells that all pairs see are added together; those that only some see, before and after, pair
  // by pair: a hidden value, which may be a NaN, must not even be multiplied by zero.
  template <class Rows>
  void add_rows(const Rows& rows, const Outputs& o) {
    alignas(64) float sums[kPairTile][kChunk];
    float* to[kPairTile];
    for (int64_t p0 = 0; p0 < n_seen_; p0 += kPairTile) {
      const int64_t n = n_seen_ - p0 < kPairTile ? n_seen_ - p0 : kPairTile;
      const Seen* seen = seen_ + p0;
      int64_t begin = 0, end = kLogicalBlock, first = kLogicalBlock;
      for (int64_t p = 0; p < n; ++p) {
        to[p] = sums[p];
        begin = seen[p].begin > begin ? seen[p].begin : begin;
        end = seen[p].end < end ? seen[p].end : end;
        first = seen[p].begin < first ? seen[p].begin : first;
      }
      if (begin > end) begin = end;
      const bool fresh = first == begin && begin < end;  // the common cells come first
      for (int64_t p = 0; !fresh && p < n; ++p)
        for (int64_t i = 0; i < kChunk; i += 16) Simd::store(to[p] + i, Simd::zero());
      const auto add = [&](int64_t p, int64_t count, int64_t from, int64_t until, bool start) {
        if (from >= until) return;
        const float* coefficients[kPairTile];
        for (int64_t i = 0; i < count; ++i) coefficients[i] = o.weights[p0 + p + i] + from;
        fma_pairs(count, coefficients, rows.skip(from), until - from, to + p, start, o.n_vectors);
      };
      for (int64_t p = 0; p < n; ++p)
        add(p, 1, seen[p].begin, seen[p].end < begin ? seen[p].end : begin, false);
      add(0, n, begin, end, fresh);
      for (int64_t p = 0; p < n; ++p)
        add(p, 1, seen[p].begin > end ? seen[p].begin : end, seen[p].end, false);
      for (int64_t p = 0; p < n; ++p)
        merge_outputs(o.n_vectors * 16, out(seen[p].pair) + o.d, sums[p], o.keep[p0 + p],
                      o.take[p0 + p]);
    }
  }

  const AttendArgs& args_;
  const int64_t key_dim_, value_dim_, kv_head_, head_, row_begin_, n_heads_, n_pairs_;
  const float* const q_;
  int64_t n_seen_ = 0;
  Seen seen_[kMaxPairs];  // of the block at hand
  float m_[kMaxPairs], l_[kMaxPairs];
  alignas(64) float out_[kStateFloats];
  alignas(64) float scores_[kMaxPairs][kLaneStride];
  alignas(64) float scratch_[kChunk * kLaneStride];  // keys by dim, then values by cell
  alignas(64) float keys_[kChunk * kLaneStride];     // by dim, of which values are made
};
