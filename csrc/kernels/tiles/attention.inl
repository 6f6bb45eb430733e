// Attention of prompts by tiles of bf16, an arithmetic of its own (prefill_attend): that of
// attention.inl but for its two products, and blocks are joined into the row one by one.
//
// A product is one of sums: three for each step (attention_operands.inl), by dot_bf16, from +0. A
// weight of a lane that a row does not see is zero and adds nothing, so rows that stand in one tile
// may see different cells, and steps that none of them sees are left out. Only the sign of a zero
// could tell: it is dropped.
//
//   for rows whose cells lie in one list: up to kMaxTilePairs pairs of a row and a query head
//     for blocks of 64 positions
//       keys; scores: for 32 cells, for 32 pairs
//       weights
//       values; outputs: for 32 dims, for 32 pairs
//
// Keys and values of a block are written once for all pairs and stay in the first-level cache while
// these pass. The weights are computed apart: tile instructions at work take half the speed of fma.

// 48 x 1024 values of queries: 512 pairs of up to 96 dims, 384 of 128.
static constexpr int64_t kQueryValues = 48 * 1024;
static constexpr int64_t kMaxTilePairs = 512;
static constexpr int64_t kMaxTileDim = 512;  // larger heads are left to the base table

// A query head of a row, and its running result.
struct TilePair {
  float* out;
  int64_t row;  // of the range
  float slope, m, l, keep, take;
};

// What a row sees of the block at hand, which begins `ahead` positions after it.
struct SeenBlock {
  LaneRange lanes;
  float ahead;
};

// What a call writes beside its results.
struct AttentionScratch {
  alignas(64) uint8_t right[kLogicalBlock * kMaxTileDim * 4];  // keys, then values
  alignas(64) uint8_t queries[kQueryValues * 4];
  alignas(64) float scores[kMaxTilePairs][kLogicalBlock];  // then weights
  alignas(64) float products[4][16 * 16];                  // 16 pairs by 16 dims
  alignas(64) float floats[kChunk * kLaneStride];
  alignas(64) TilePair pairs[kMaxTilePairs];
  SeenBlock rows[kMaxTilePairs];
};

// Tile I of sums += the products of 16 pairs each in tiles 4, 5 with 16 columns each in 6, 7.
template <class T, int M, int N, int I>
static inline void dot_pairs() {
  if constexpr (I / 2 < M && I % 2 < N) T::template dot_bf16<I, 4 + I / 2, 6 + I % 2>();
}

// Tiles 0 to 3 = products of 16 M pairs and 16 N columns over steps [begin, end). `stride`: bytes
// between pairs.
template <class T, int M, int N>
static inline void multiply_pairs(const uint8_t* left, int64_t stride, const uint8_t* right,
                                  int64_t begin, int64_t end) {
  each_sum([&]<int I>() {
    if constexpr (I / 2 < M && I % 2 < N) T::template zero<I>();
  });
  const uint8_t* left1 = left + 16 * stride;
  for (int64_t k = begin; k < end; ++k) {
    const uint8_t *hi = left + k * kStepBytes, *lo = hi + kStepBytes / 2;
    const uint8_t *hi1 = left1 + k * kStepBytes, *lo1 = hi1 + kStepBytes / 2;
    const uint8_t *b = right + k * 4 * kRightTile, *b_lo = b + kToLow;
    T::template stream<4>(lo, stride);
    T::template load<6>(b, 64);
    dot_pairs<T, M, N, 0>();
    if constexpr (N == 2) T::template load<7>(b + kRightTile, 64);
    dot_pairs<T, M, N, 1>();
    if constexpr (M == 2) T::template stream<5>(lo1, stride);
    dot_pairs<T, M, N, 2>();
    dot_pairs<T, M, N, 3>();
    T::template stream<4>(hi, stride);
    dot_pairs<T, M, N, 0>();
    dot_pairs<T, M, N, 1>();
    if constexpr (M == 2) T::template stream<5>(hi1, stride);
    dot_pairs<T, M, N, 2>();
    dot_pairs<T, M, N, 3>();
    T::template load<6>(b_lo, 64);
    dot_pairs<T, M, N, 0>();
    dot_pairs<T, M, N, 2>();
    if constexpr (N == 2) T::template load<7>(b_lo + kRightTile, 64);
    dot_pairs<T, M, N, 1>();
    dot_pairs<T, M, N, 3>();
  }
}

// Pair r * n_heads + h is row `row + r` of the arguments and query head `head + h`. All views are
// parts of `cells`.
struct PairRange {
  RowView cells;
  int64_t row, n_rows, kv_head, head, n_heads;
  int64_t n() const { return n_rows * n_heads; }
};

template <class T>
class TilePairs {
 public:
  TilePairs(const AttendArgs& args, const PairRange& range)
      : args_(args),
        range_(range),
        memory_(*reinterpret_cast<AttentionScratch*>(args.scratch)),
        query_bytes_(steps(args.kv.key_dim) * kStepBytes),
        n_vectors_(args.kv.value_dim / 16),
        n_groups_((range.n() + 15) / 16) {
    TilePair* pair = memory_.pairs;
    uint8_t* query = memory_.queries;
    for (int64_t r = 0; r < range.n_rows; ++r)
      for (int64_t h = range.head; h < range.head + range.n_heads; ++h, query += query_bytes_) {
        *pair++ = {.out = args.out + (range.row + r) * args.out_stride + h * args.kv.value_dim,
                   .row = r,
                   .slope = args.slopes ? args.slopes[h] : 0.0f,
                   .m = -__builtin_inff(),
                   .l = 0.0f,
                   .keep = 0.0f,
                   .take = 0.0f};
        left_query(args.q + (range.row + r) * args.q_stride + h * args.kv.key_dim, args.kv.key_dim,
                   query);
      }
    __builtin_memset(query, 0, static_cast<size_t>((16 * n_groups_ - range.n()) * query_bytes_));
    for (int64_t p = 0; p < range.n(); ++p)
      for (int64_t v = 0; v < n_vectors_; ++v)
        Lanes::store(memory_.pairs[p].out + 16 * v, Lanes::zero());
  }

  // Adds the next block, cells [begin, end) of the range's.
  void add_block(int64_t begin, int64_t end) {
    const RowView& all = range_.cells;
    const KvView& kv = args_.kv;
    describe({all.slots + begin, all.positions + begin, end - begin}, block_);
    see(begin, end);
    right_keys(kv, range_.kv_head, block_, memory_.floats, memory_.right);
    make_scores();
    for (int64_t g = 0; g < n_groups_; ++g)
      if (of_group_[g].any()) make_weights(g);
    const int64_t n_values = kv.n_kv_heads * kv.value_dim;
    const int32_t* slots = block_.cells.slots;
    if (kv.type == CacheType::F16)
      add_values(ValueRowsF16{value_f16(kv, 0, range_.kv_head), n_values, slots});
    else
      add_values(ValueRowsQ8{value_q8(kv, 0, range_.kv_head), n_values / 32, slots});
  }

  void finish() {
    for (int64_t p = 0; p < range_.n() && args_.sinks; ++p) {
      TilePair& pair = memory_.pairs[p];
      float m[16] = {pair.m}, l[16] = {pair.l}, keep[16];
      const float sinks[16] = {args_.sinks[range_.head + p % range_.n_heads]};
      merge_sinks(1, m, l, sinks, keep);
      pair.l = l[0];
      keep_output(args_.kv.value_dim, pair.out, keep[0]);
    }
    for (int64_t p = 0; p < range_.n(); ++p)
      finish_output(args_.kv.value_dim, memory_.pairs[p].out, memory_.pairs[p].l);
  }

 private:
  // What each row sees of cells [begin, end), and each group of 16 pairs.
  void see(int64_t begin, int64_t end) {
    const int64_t position = block_.cells.positions[0] / kLogicalBlock * kLogicalBlock;
    for (LaneRange& group : of_group_) group = {};
    for (int64_t r = 0; r < range_.n_rows; ++r) {
      const RowView& view = args_.views[range_.row + r];
      SeenBlock& row = memory_.rows[r];
      row = {{}, 0.0f};
      if (view.n == 0) continue;
      const int64_t first = view.slots - range_.cells.slots, last = first + view.n;
      const int64_t from = first < begin ? begin : first, until = last < end ? last : end;
      if (from >= until) continue;
      row = {{block_.lane(from - begin), block_.lane(until - 1 - begin)},
             static_cast<float>(position - view.positions[view.n - 1])};
      const int64_t pair = r * range_.n_heads;
      for (int64_t g = pair / 16; g <= (pair + range_.n_heads - 1) / 16; ++g)
        of_group_[g].join(row.lanes);
    }
  }

  // body<M>(g, lanes) for groups g of 16 pairs, or g and g + 1, of which some see the lanes.
  template <class Body>
  void each_group(Body body) const {
    for (int64_t g = 0; g < n_groups_; ++g) {
      LaneRange lanes = of_group_[g];
      if (!lanes.any()) continue;
      if (g + 1 < n_groups_ && of_group_[g + 1].any()) {
        lanes.join(of_group_[g + 1]);
        body.template operator()<2>(g++, lanes);
      } else {
        body.template operator()<1>(g, lanes);
      }
    }
  }

  void make_scores() {
    const int64_t n_steps = steps(args_.kv.key_dim);
    for (int64_t c = 0; c < kLogicalBlock / kStep; ++c)
      each_group([&]<int M>(int64_t g, const LaneRange& lanes) {
        if (lanes.last < c * kStep || lanes.first >= (c + 1) * kStep) return;
        multiply_pairs<T, M, 2>(memory_.queries + 16 * g * query_bytes_, query_bytes_,
                                memory_.right + c * n_steps * 4 * kRightTile, 0, n_steps);
        each_sum([&]<int I>() {
          if constexpr (I / 2 < M)
            T::template store<I>(memory_.scores[16 * (g + I / 2)] + c * kStep + I % 2 * 16,
                                 sizeof memory_.scores[0]);
        });
      });
  }

  // Turns the scores of a group into weights, and joins the block's maximums and sums. In three
  // loops, because one would wait for each maximum.
  void make_weights(int64_t g) {
    const int64_t n = range_.n() - 16 * g < 16 ? range_.n() - 16 * g : 16;
    TilePair* pairs = memory_.pairs + 16 * g;
    float(*scores)[kLogicalBlock] = memory_.scores + 16 * g;
    float m[16] = {}, l[16] = {}, mb[16] = {}, lb[16] = {}, keep[16], take[16];
    const SeenBlock* seen[16];
    for (int64_t i = 0; i < n; ++i) {
      seen[i] = memory_.rows + pairs[i].row;
      if (!seen[i]->lanes.any()) continue;
      m[i] = pairs[i].m;
      l[i] = pairs[i].l;
      mb[i] = finish_scores(args_, block_, seen[i]->lanes.first, seen[i]->lanes.last,
                            {0, pairs[i].slope, seen[i]->ahead}, scores[i]);
    }
    for (int64_t i = 0; i < n; ++i)
      if (seen[i]->lanes.any())
        lb[i] = weigh(seen[i]->lanes.first, seen[i]->lanes.last, mb[i], scores[i]);
    for (int64_t i = 0; i < n; ++i) left_weights(scores[i], seen[i]->lanes);
    merge_weights(n, m, l, mb, lb, keep, take);
    for (int64_t i = 0; i < n; ++i)
      if (seen[i]->lanes.any())
        pairs[i] = {pairs[i].out, pairs[i].row, pairs[i].slope, m[i], l[i], keep[i], take[i]};
  }

  template <class Rows>
  void add_values(const Rows& rows) {
    RightValues<Rows> values(block_, rows, args_.kv.value_dim);
    values.write(memory_.right);
    for (int64_t v = 0; v < n_vectors_; v += 2)
      each_group([&]<int M>(int64_t g, const LaneRange& lanes) {
        if (v + 1 < n_vectors_)
          add_products<M, 2>(values, g, lanes, v);
        else
          add_products<M, 1>(values, g, lanes, v);
      });
  }

  // Dims [16 v, 16 (v + N)) of 16 M pairs.
  template <int M, int N, class Rows>
  void add_products(const RightValues<Rows>& values, int64_t g, const LaneRange& lanes, int64_t v) {
    constexpr int64_t kSteps = kLogicalBlock / kStep;
    multiply_pairs<T, M, N>(reinterpret_cast<const uint8_t*>(memory_.scores[16 * g]),
                            sizeof memory_.scores[0],
                            memory_.right + v / 2 * kSteps * 4 * kRightTile, lanes.first / kStep,
                            lanes.last / kStep + 1);
    each_sum([&]<int I>() {
      if constexpr (I / 2 < M && I % 2 < N) T::template store<I>(memory_.products[I], 64);
    });
    for (int64_t i = 0; i < 16 * M && 16 * g + i < range_.n(); ++i) {
      const TilePair& pair = memory_.pairs[16 * g + i];
      const LaneRange& seen = memory_.rows[pair.row].lanes;
      if (!seen.any()) continue;
      const Lanes::F keep = Lanes::set1(pair.keep), take = Lanes::set1(pair.take);
      for (int64_t n = 0; n < N; ++n) {
        const float* product = memory_.products[i / 16 * 2 + n] + i % 16 * 16;
        const Lanes::F sum = values.add_odd(Lanes::add(Lanes::load(product), Lanes::zero()),
                                            memory_.scores[16 * g + i], seen, v + n);
        float* out = pair.out + 16 * (v + n);
        Lanes::store(out, Lanes::fma(Lanes::load(out), keep, Lanes::mul(sum, take)));
      }
    }
  }

  const AttendArgs& args_;
  const PairRange range_;
  AttentionScratch& memory_;
  const int64_t query_bytes_, n_vectors_, n_groups_;
  Block block_;
  LaneRange of_group_[kMaxTilePairs / 16];
};

// Joins a row's cells to those of rows before it, if both are parts of one list.
static inline bool join_views(RowView& all, const RowView& view) {
  if (view.n == 0) return true;
  if (all.n == 0) {
    all = view;
    return true;
  }
  const auto apart = [](const int32_t* a, const int32_t* b) {
    return static_cast<int64_t>(reinterpret_cast<intptr_t>(b) - reinterpret_cast<intptr_t>(a));
  };
  const int64_t bytes = apart(all.slots, view.slots), size = sizeof(int32_t);
  if (bytes % size != 0 || bytes != apart(all.positions, view.positions)) return false;
  // They overlap, so they are of one list.
  const int64_t first = bytes / size, last = first + view.n;
  if (first >= all.n || last <= 0) return false;
  const int64_t end = last > all.n ? last : all.n;
  if (first < 0)
    all = {view.slots, view.positions, end - first};
  else
    all.n = end;
  return true;
}

template <class T>
static void attend_range(const AttendArgs& args, const PairRange& range) {
  TilePairs<T> pairs(args, range);
  const RowView& cells = range.cells;
  for (int64_t begin = 0, end; begin < cells.n; begin = end) {
    const int64_t limit = (cells.positions[begin] / kLogicalBlock + 1) * kLogicalBlock;
    for (end = begin + 1; end < cells.n && cells.positions[end] < limit;) ++end;
    pairs.add_block(begin, end);
  }
  pairs.finish();
}

template <class T>
static void attend_by_tiles(const AttendArgs& args, int64_t row_begin, int64_t row_end,
                            int64_t kv_head) {
  const KvView& kv = args.kv;
  if (kv.key_dim > kMaxTileDim || kv.value_dim > kMaxTileDim)
    return base_table->attend(args, row_begin, row_end, kv_head);
  const auto least = [](int64_t a, int64_t b) { return a < b ? a : b; };
  const int64_t group = args.n_heads / kv.n_kv_heads;
  const int64_t most_pairs =
      least(kMaxTilePairs, kQueryValues / (steps(kv.key_dim) * kStep) / 16 * 16);
  const int64_t most_heads = least(group, most_pairs), most_rows = most_pairs / most_heads;
  T::config(whole_tiles());
  for (int64_t row = row_begin, n_rows; row < row_end; row += n_rows) {
    RowView cells = args.views[row];
    for (n_rows = 1; n_rows < most_rows && row + n_rows < row_end; ++n_rows)
      if (!join_views(cells, args.views[row + n_rows])) break;
    for (int64_t h = 0; h < group; h += most_heads)
      attend_range<T>(
          args, {cells, row, n_rows, kv_head, kv_head * group + h, least(most_heads, group - h)});
  }
  T::release();
}
