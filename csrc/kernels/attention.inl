// Attention whose result is a pure function of a row's query and the (position, key, value) triples
// it sees. Positions fall into logical blocks of 64 and spans of 512. A block is softmaxed by
// itself: maximum m, weights exp(score - m), their sum l by position in a fixed tree, values added
// in ascending position. Blocks are joined in order into their span, spans in order into the row.
// Which slots hold the cells, which other rows are computed, and on how many threads, only decides
// how the work is shared.
#include "kernels/attention_tiles.inl"

inline constexpr int64_t kMaxPairs = 48;  // a multiple of 16 and of kPairTile
inline constexpr int64_t kMaxRows = 32;   // a single key/value head: 32 rows share a conversion
inline constexpr int64_t kStateFloats = 16384;  // 64 KiB of unfinished outputs, well inside L2
inline constexpr int64_t kMaxDirectPieces =
    8;  // beyond, converting costs less than whole vectors per piece
inline constexpr int64_t kSpanBlocks = kLogicalSpan / kLogicalBlock;
static_assert(kMaxPairs % 16 == 0 && kMaxPairs % kPairTile == 0);

// Joins (mb, lb) into (m, l), and says by what to scale both sides' outputs:
// out = fma(out, keep, out_b * take).
static inline void merge_weights(int64_t n, float* m, float* l, const float* mb, const float* lb,
                                 float* keep, float* take) {
  using S = Simd;
  for (int64_t i = 0; i < n; i += 16) {
    const S::F old_m = S::load(m + i), new_m = S::load(mb + i), top = S::max(old_m, new_m);
    const S::F k = exp_lanes(S::sub(old_m, top)), t = exp_lanes(S::sub(new_m, top));
    S::store(l + i, S::fma(S::load(l + i), k, S::mul(S::load(lb + i), t)));
    S::store(m + i, top);
    S::store(keep + i, k);
    S::store(take + i, t);
  }
}

static inline void merge_outputs(int64_t n, float* out, const float* out_b, float keep,
                                 float take) {
  using S = Simd;
  const S::F k = S::set1(keep), t = S::set1(take);
  for (int64_t i = 0; i < n; i += 16)
    S::store(out + i, S::fma(S::load(out + i), k, S::mul(S::load(out_b + i), t)));
}

// out /= l; a row that saw no cell has l = 0 and stays zero.
static inline void finish(int64_t n, float* out, float l) {
  if (l == 0.0f) return;
  for (int64_t i = 0; i < n; i += 16)
    Simd::store(out + i, Simd::div(Simd::load(out + i), Simd::set1(l)));
}

// Softmaxes one block for one pair: raw dots in, weights out; 0 on the lanes outside [first, last]
// or absent. lane_ids[i] is i where the block has a cell and +inf elsewhere.
static inline void softmax_block(const AttendArgs& args, const float* lane_ids, int64_t first,
                                 int64_t last, float* s, float* m, float* l) {
  using S = Simd;
  const S::F low = S::set1(static_cast<float>(first)), high = S::set1(static_cast<float>(last));
  const S::F ninf = S::set1(-__builtin_inff()), scale = S::set1(args.scale);
  const int64_t v0 = first / 16, v1 = last / 16;
  S::F top = ninf;
  for (int64_t v = v0; v <= v1; ++v) {
    S::F x = S::mul(S::load(s + v * 16), scale);
    if (args.softcap > 0.0f) x = softcap_lanes(x, S::set1(args.softcap));
    const S::F id = S::load(lane_ids + v * 16);
    x = S::where_less(id, low, ninf, S::where_less(high, id, ninf, x));
    S::store(s + v * 16, x);
    top = S::max(x, top);
  }
  *m = S::reduce_max(top);
  const S::F max = S::set1(*m);
  S::F p[4];
  for (int64_t v = 0; v < 4; ++v) {
    const bool any = v0 <= v && v <= v1;
    p[v] = any ? exp_lanes(S::sub(S::load(s + v * 16), max)) : S::zero();
    S::store(s + v * 16, p[v]);
  }
  *l = S::reduce_add(S::add(S::add(p[0], p[1]), S::add(p[2], p[3])));
}

// A few rows and the heads [head, head + n_heads) of each, on their way through the blocks. Pair
// row * n_heads + h is row `row_begin + row`, head `head + h`.
class Tile {
 public:
  Tile(const AttendArgs& args, int64_t row_begin, int64_t n_rows, int64_t kv_head, int64_t head,
       int64_t n_heads)
      : args_(args),
        dim_(args.kv.head_dim),
        row_begin_(row_begin),
        n_rows_(n_rows),
        kv_head_(kv_head),
        head_(head),
        n_heads_(n_heads) {
    for (int64_t r = 0; r < n_rows; ++r) next_[r] = 0;
    reset();
  }

  // The span of the first cell that no row has visited yet, or -1 when there is none.
  int64_t next_span() const {
    const int64_t b = next_block();
    return b < 0 ? b : b / kSpanBlocks;
  }
  // Visits the rest of a span.
  void visit(int64_t span) {
    for (int64_t b = next_block(); b >= 0 && b / kSpanBlocks == span; b = next_block())
      visit_block(b);
  }
  // Skips the cells before a span.
  void seek(int64_t span) {
    for (int64_t r = 0; r < n_rows_; ++r) next_[r] = lower_bound(view(r), span * kLogicalSpan);
  }
  void reset() {
    for (int64_t p = 0; p < kMaxPairs; ++p) m_[p] = -__builtin_inff(), l_[p] = 0.0f;
    for (int64_t i = 0; i < n_rows_ * n_heads_ * dim_; ++i) out_[i] = 0.0f;
  }
  // What the visited blocks amount to.
  float* m() { return m_; }
  float* l() { return l_; }
  float* out(int64_t pair) { return out_ + pair * dim_; }

 private:
  // Cells [begin, end) of a block's reference slice are what this row sees of it.
  struct Share {
    int64_t row, begin, end;
  };

  const RowView& view(int64_t r) const { return args_.views[row_begin_ + r]; }
  const float* query(int64_t row, int64_t h) const {
    return args_.q + (row_begin_ + row) * args_.q_stride + (head_ + h) * dim_;
  }

  // The first cell at `position` or later.
  static int64_t lower_bound(const RowView& view, int64_t position, int64_t lo = 0) {
    for (int64_t hi = view.n; lo < hi;) {
      const int64_t mid = lo + (hi - lo) / 2;
      if (view.positions[mid] < position)
        lo = mid + 1;
      else
        hi = mid;
    }
    return lo;
  }

  int64_t next_block() const {
    int64_t first = -1;
    for (int64_t r = 0; r < n_rows_; ++r) {
      if (next_[r] == view(r).n) continue;
      const int64_t b = view(r).positions[next_[r]] / kLogicalBlock;
      if (first < 0 || b < first) first = b;
    }
    return first;
  }

  // The row's unvisited cells of block b, now counted as visited.
  RowView take(int64_t r, int64_t b) {
    const RowView& all = view(r);
    const int64_t begin = next_[r], end_position = (b + 1) * kLogicalBlock;
    if (begin == all.n || all.positions[begin] >= end_position) return {nullptr, nullptr, 0};
    // Positions ascend, so a block's cells are at most as many as its positions from here on.
    const int64_t most = end_position - all.positions[begin];
    const RowView near = {all.slots, all.positions, begin + most < all.n ? begin + most : all.n};
    const bool full = all.positions[near.n - 1] < end_position;
    next_[r] = full ? near.n : lower_bound(near, end_position, begin);
    return {all.slots + begin, all.positions + begin, next_[r] - begin};
  }

  // Where in `all` the cells of `part` are, side by side, or -1. Rows of one prefill point into one
  // array.
  static int64_t find(const RowView& all, const RowView& part) {
    const auto apart = [](const int32_t* a, const int32_t* b) {
      return static_cast<int64_t>(reinterpret_cast<intptr_t>(b) - reinterpret_cast<intptr_t>(a));
    };
    const int64_t bytes = apart(all.slots, part.slots);
    const int64_t size = static_cast<int64_t>(sizeof(int32_t));
    if (bytes >= 0 && bytes % size == 0 && bytes == apart(all.positions, part.positions) &&
        bytes / size + part.n <= all.n)
      return bytes / size;
    const int64_t at = lower_bound(all, part.positions[0]);
    if (at + part.n > all.n) return -1;
    int32_t difference = 0;
    for (int64_t i = 0; i < part.n; ++i)
      difference |=
          (all.slots[at + i] ^ part.slots[i]) | (all.positions[at + i] ^ part.positions[i]);
    return difference ? -1 : at;
  }

  // Rows whose cells of this block are those of one row, or a stretch of them, are computed
  // together.
  void visit_block(int64_t b) {
    RowView slices[kMaxRows];
    for (int64_t r = 0; r < n_rows_; ++r) slices[r] = take(r, b);
    for (;;) {
      const RowView* longest = slices;
      for (int64_t r = 1; r < n_rows_; ++r)
        if (slices[r].n > longest->n) longest = slices + r;
      const RowView reference = *longest;
      if (reference.n == 0) return;
      Share shares[kMaxRows];
      int64_t n_shares = 0;
      for (int64_t r = 0; r < n_rows_; ++r) {
        if (slices[r].n == 0) continue;
        const int64_t at = find(reference, slices[r]);
        if (at < 0) continue;
        shares[n_shares++] = {r, at, at + slices[r].n};
        slices[r].n = 0;
      }
      attend_block(reference, shares, n_shares);
    }
  }

  void attend_block(const RowView& cells, const Share* shares, int64_t n_shares) {
    const int64_t n_pairs = n_shares * n_heads_;
    Piece pieces[kLogicalBlock];
    const int64_t n_pieces = cut(cells, pieces);
    const bool direct = n_shares == 1 && n_pieces <= kMaxDirectPieces;

    const float* q[kMaxPairs];
    for (int64_t p = 0; p < n_pairs; ++p) q[p] = query(shares[p / n_heads_].row, p % n_heads_);
    if (direct)
      score_direct(pieces, n_pieces, n_pairs, q);
    else
      score_converted(pieces, n_pieces, n_pairs, q);

    float lane_ids[kLogicalBlock];
    for (float& id : lane_ids) id = __builtin_inff();
    for (int64_t i = 0; i < cells.n; ++i)
      lane_ids[lane(cells, i)] = static_cast<float>(lane(cells, i));
    float m[kMaxPairs] = {}, l[kMaxPairs] = {}, mb[kMaxPairs] = {}, lb[kMaxPairs] = {};
    float keep[kMaxPairs], take[kMaxPairs];
    const float* weights[kMaxPairs];
    for (int64_t p = 0; p < n_pairs; ++p) {
      const Share& share = shares[p / n_heads_];
      softmax_block(args_, lane_ids, lane(cells, share.begin), lane(cells, share.end - 1),
                    scores_[p], mb + p, lb + p);
      weights[p] = by_cell(cells, scores_[p]);
      m[p] = m_[pair(shares, p)], l[p] = l_[pair(shares, p)];
    }
    merge_weights(n_pairs, m, l, mb, lb, keep, take);
    for (int64_t p = 0; p < n_pairs; ++p) m_[pair(shares, p)] = m[p], l_[pair(shares, p)] = l[p];

    for (int64_t d = 0; d < dim_; d += kChunk) {
      const int64_t n_vectors = (dim_ - d < kChunk ? dim_ - d : kChunk) / 16;
      const Outputs o = {shares, n_pairs, weights, keep, take, d, n_vectors};
      if (args_.kv.type == CacheType::F16) {
        const ValueRowsF16 rows = {value_f16(args_.kv, 0, kv_head_) + d, args_.kv.n_kv_heads * dim_,
                                   cells.slots};
        add_values(rows, cells.n, direct, o);
      } else {
        const ValueRowsQ8 rows = {value_q8(args_.kv, 0, kv_head_) + d / 32,
                                  args_.kv.n_kv_heads * dim_ / 32, cells.slots};
        add_values(rows, cells.n, direct, o);
      }
    }
  }

  static int64_t lane(const RowView& cells, int64_t i) {
    return cells.positions[i] % kLogicalBlock;
  }
  int64_t pair(const Share* shares, int64_t p) const {
    return shares[p / n_heads_].row * n_heads_ + p % n_heads_;
  }

  // Weights in the order of the cells: where positions have gaps, moved together.
  static const float* by_cell(const RowView& cells, float* lanes) {
    if (lane(cells, cells.n - 1) - lane(cells, 0) == cells.n - 1) return lanes + lane(cells, 0);
    for (int64_t i = 0; i < cells.n; ++i) lanes[i] = lanes[lane(cells, i)];
    return lanes;
  }

  // Scores straight from the cache, sixteen slots at a time, then moved to their lanes.
  void score_direct(const Piece* pieces, int64_t n_pieces, int64_t n_pairs, const float* const* q) {
    const KvView& kv = args_.kv;
    float by_slot[kPairTile][kMaxDirectPieces * 16 + 16] = {};
    float d[kMaxDirectPieces * 16];
    const uint16_t* f16[kMaxDirectPieces];
    const int8_t* q8[kMaxDirectPieces];
    for (int64_t p0 = 0; p0 < n_pairs; p0 += kPairTile) {
      const int64_t n = n_pairs - p0 < kPairTile ? n_pairs - p0 : kPairTile;
      float* sums[kPairTile];
      for (int64_t p = 0; p < n; ++p) {
        sums[p] = by_slot[p];
        for (int64_t i = 0; i < n_pieces * 16; ++i) sums[p][i] = 0.0f;
      }
      if (kv.type == CacheType::F16) {
        for (int64_t i = 0; i < n_pieces; ++i) f16[i] = key_f16(kv, pieces[i].slot, kv_head_);
        fma_pairs(n, q + p0, KeyRowsF16{f16}, dim_, sums, n_pieces);
      } else {
        for (int64_t d0 = 0; d0 < dim_; d0 += 32) {
          const float* coefficients[kPairTile];
          for (int64_t p = 0; p < n; ++p) coefficients[p] = q[p0 + p] + d0;
          for (int64_t i = 0; i < n_pieces; ++i) {
            const KeyQ8* block = key_q8(kv, pieces[i].slot, kv_head_) + d0 / 32;
            q8[i] = block->q;
            Simd::store(d + i * 16, Simd::load_f16(block->d));
          }
          fma_pairs(n, coefficients, KeyRowsQ8{q8, d}, 32, sums, n_pieces);
        }
      }
      for (int64_t p = 0; p < n; ++p)
        for (int64_t i = 0; i < n_pieces; ++i)
          Simd::store(scores_[p0 + p] + pieces[i].lane,
                      Simd::load(by_slot[p] + i * 16 + pieces[i].slot % 16));
    }
  }

  // Keys to f32 in the order of the lanes, once for all pairs.
  void score_converted(const Piece* pieces, int64_t n_pieces, int64_t n_pairs,
                       const float* const* q) {
    const Piece& final = pieces[n_pieces - 1];
    const int64_t v0 = pieces[0].lane / 16, v1 = (final.lane + final.n + 15) / 16;
    float* sums[kMaxPairs];
    const float* coefficients[kMaxPairs];
    for (int64_t p = 0; p < n_pairs; ++p) {
      sums[p] = scores_[p] + v0 * 16;
      for (int64_t i = 0; i < (v1 - v0) * 16; ++i) sums[p][i] = 0.0f;
    }
    for (int64_t d = 0; d < dim_; d += kChunk) {
      const int64_t n_dims = dim_ - d < kChunk ? dim_ - d : kChunk;
      convert_keys(args_.kv, kv_head_, pieces, n_pieces, d, n_dims, scratch_);
      for (int64_t p = 0; p < n_pairs; ++p) coefficients[p] = q[p] + d;
      fma_pairs(n_pairs, coefficients, ScratchRows{scratch_ + v0 * 16, kLaneStride}, n_dims, sums,
                v1 - v0);
    }
  }

  struct Outputs {
    const Share* shares;
    int64_t n_pairs;
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

  // Pairs take the cells that all of them see together; what only some see, before and after, each
  // alone: a hidden value, perhaps not a number, must not even be multiplied by zero.
  template <class Rows>
  void add_rows(const Rows& rows, const Outputs& o) {
    float sums[kPairTile][kChunk];
    float* to[kPairTile];
    for (int64_t p0 = 0; p0 < o.n_pairs; p0 += kPairTile) {
      const int64_t n = o.n_pairs - p0 < kPairTile ? o.n_pairs - p0 : kPairTile;
      const auto share = [&](int64_t p) -> const Share& { return o.shares[(p0 + p) / n_heads_]; };
      int64_t begin = 0, end = kLogicalBlock;
      for (int64_t p = 0; p < n; ++p) {
        to[p] = sums[p];
        for (int64_t i = 0; i < o.n_vectors * 16; ++i) sums[p][i] = 0.0f;
        if (share(p).begin > begin) begin = share(p).begin;
        if (share(p).end < end) end = share(p).end;
      }
      if (begin > end) begin = end;
      const auto add = [&](int64_t p, int64_t count, int64_t from, int64_t until) {
        if (from >= until) return;
        const float* coefficients[kPairTile];
        for (int64_t i = 0; i < count; ++i) coefficients[i] = o.weights[p0 + p + i] + from;
        fma_pairs(count, coefficients, rows.skip(from), until - from, to + p, o.n_vectors);
      };
      for (int64_t p = 0; p < n; ++p) {
        const int64_t until = share(p).end < begin ? share(p).end : begin;
        add(p, 1, share(p).begin, until);
      }
      add(0, n, begin, end);
      for (int64_t p = 0; p < n; ++p) {
        const int64_t from = share(p).begin > end ? share(p).begin : end;
        add(p, 1, from, share(p).end);
      }
      for (int64_t p = 0; p < n; ++p)
        merge_outputs(o.n_vectors * 16, out(pair(o.shares, p0 + p)) + o.d, sums[p], o.keep[p0 + p],
                      o.take[p0 + p]);
    }
  }

  const AttendArgs& args_;
  const int64_t dim_, row_begin_, n_rows_, kv_head_, head_, n_heads_;
  int64_t next_[kMaxRows];  // by row: the first cell not visited
  float m_[kMaxPairs], l_[kMaxPairs];
  float out_[kStateFloats];
  float scores_[kMaxPairs][kLaneStride];
  float scratch_[kChunk * kLaneStride];  // keys by dim, then values by cell
};

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// Heads of a group that fit in one tile: all of them, but for very wide groups.
static inline int64_t tile_heads(const AttendArgs& args) {
  const int64_t group = args.n_heads / args.kv.n_kv_heads;
  return smaller(group, smaller(kMaxPairs, kStateFloats / args.kv.head_dim));
}

static void attend(const AttendArgs& args, int64_t row_begin, int64_t row_end, int64_t kv_head) {
  const int64_t dim = args.kv.head_dim, group = args.n_heads / args.kv.n_kv_heads;
  const int64_t most_heads = tile_heads(args);
  const int64_t most_rows = smaller(kMaxRows, smaller(kMaxPairs, kStateFloats / dim) / most_heads);
  for (int64_t h = 0; h < group; h += most_heads) {
    const int64_t head = kv_head * group + h, n_heads = smaller(most_heads, group - h);
    for (int64_t row = row_begin; row < row_end; row += most_rows) {
      const int64_t n_rows = smaller(most_rows, row_end - row), n_pairs = n_rows * n_heads;
      const auto out = [&](int64_t p) {
        return args.out + (row + p / n_heads) * args.out_stride + (head + p % n_heads) * dim;
      };
      Tile tile(args, row, n_rows, kv_head, head, n_heads);
      float m[kMaxPairs], l[kMaxPairs] = {}, keep[kMaxPairs], take[kMaxPairs];
      for (float& x : m) x = -__builtin_inff();
      for (int64_t p = 0; p < n_pairs; ++p)
        for (int64_t i = 0; i < dim; ++i) out(p)[i] = 0.0f;
      for (int64_t span = tile.next_span(); span >= 0; span = tile.next_span()) {
        tile.visit(span);
        // merge_weights would turn a row without cells so far, -inf against -inf, into nan.
        float m_old[kMaxPairs], l_old[kMaxPairs];
        for (int64_t p = 0; p < kMaxPairs; ++p) m_old[p] = m[p], l_old[p] = l[p];
        merge_weights(n_pairs, m, l, tile.m(), tile.l(), keep, take);
        for (int64_t p = 0; p < n_pairs; ++p) {
          if (tile.l()[p] == 0.0f)
            m[p] = m_old[p], l[p] = l_old[p];
          else
            merge_outputs(dim, out(p), tile.out(p), keep[p], take[p]);
        }
        tile.reset();
      }
      for (int64_t p = 0; p < n_pairs; ++p) finish(dim, out(p), l[p]);
    }
  }
}

static void attend_span(const AttendArgs& args, int64_t row, int64_t kv_head, int64_t span,
                        float* partial) {
  const int64_t dim = args.kv.head_dim, group = args.n_heads / args.kv.n_kv_heads;
  const int64_t most_heads = tile_heads(args);
  for (int64_t h = 0; h < group; h += most_heads) {
    const int64_t n_heads = smaller(most_heads, group - h);
    Tile tile(args, row, 1, kv_head, kv_head * group + h, n_heads);
    const int64_t first = tile.next_span();
    if (first >= 0) {
      tile.seek(first + span);
      tile.visit(first + span);
    }
    for (int64_t p = 0; p < n_heads; ++p) {
      float* to = partial + (h + p) * (dim + 2);
      for (int64_t i = 0; i < dim; ++i) to[i] = tile.out(p)[i];
      to[dim] = tile.m()[p];
      to[dim + 1] = tile.l()[p];
    }
  }
}

static void attend_merge(const AttendArgs& args, int64_t row, int64_t kv_head,
                         const float* partials, int64_t n_spans) {
  const int64_t dim = args.kv.head_dim, group = args.n_heads / args.kv.n_kv_heads;
  for (int64_t h = 0; h < group; ++h) {
    float* out = args.out + row * args.out_stride + (kv_head * group + h) * dim;
    for (int64_t i = 0; i < dim; ++i) out[i] = 0.0f;
    float m[16] = {-__builtin_inff()}, l[16] = {}, keep[16], take[16];
    for (int64_t span = 0; span < n_spans; ++span) {
      const float* part = partials + (span * group + h) * (dim + 2);
      if (part[dim + 1] == 0.0f) continue;
      const float mb[16] = {part[dim]}, lb[16] = {part[dim + 1]};
      merge_weights(1, m, l, mb, lb, keep, take);
      merge_outputs(dim, out, part, keep[0], take[0]);
    }
    finish(dim, out, l[0]);
  }
}

static inline void fill_attention(KernelTable& t) {
  t.store_kv = store_kv;
  t.load_k = load_k;
  t.store_k = store_k;
  t.attend = attend;
  t.attend_span = attend_span;
  t.attend_merge = attend_merge;
}
