// Attention as a pure function of a row's query and the (position, key, value) triples that it
// sees. Positions fall into logical blocks of 64 and spans of 512. Each block is softmaxed by
// itself: maximum m, weights exp(score - m), their sum l by position in a fixed tree, values added
// in ascending position. Blocks are joined in order into their span, spans in order into the row.
// The slots of the cells, the other rows and the number of threads only decide how the work is
// split.
#include "kernels/attention/pairs.inl"
#include "kernels/attention/store_kv.inl"

inline constexpr int64_t kMaxRows = 32;
inline constexpr int64_t kSpanBlocks = kLogicalSpan / kLogicalBlock;

// Walks a few rows through their views, block by block in ascending order.
class Walk {
 public:
  Walk(const RowView* views, int64_t n_rows, Pairs& pairs)
      : views_(views), n_rows_(n_rows), pairs_(pairs) {
    for (int64_t r = 0; r < n_rows; ++r) next_[r] = 0;
  }

  // The span of the first unvisited cell, or -1.
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
    for (int64_t r = 0; r < n_rows_; ++r) next_[r] = lower_bound(views_[r], span * kLogicalSpan);
  }

 private:
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
      if (next_[r] == views_[r].n) continue;
      const int64_t b = views_[r].positions[next_[r]] / kLogicalBlock;
      if (first < 0 || b < first) first = b;
    }
    return first;
  }

  // The row's unvisited cells of block b, now counted as visited.
  RowView take(int64_t r, int64_t b) {
    const RowView& all = views_[r];
    const int64_t begin = next_[r], end_position = (b + 1) * kLogicalBlock;
    if (begin == all.n || all.positions[begin] >= end_position) return {nullptr, nullptr, 0};
    // Positions ascend, so a block has at most as many cells as positions left in it.
    const int64_t most = end_position - all.positions[begin];
    const RowView near = {all.slots, all.positions, begin + most < all.n ? begin + most : all.n};
    const bool full = all.positions[near.n - 1] < end_position;
    next_[r] = full ? near.n : lower_bound(near, end_position, begin);
    return {all.slots + begin, all.positions + begin, next_[r] - begin};
  }

  // The index in `all` at which the cells of `part` are stored, or -1. Rows of one prefill point
  // into one array.
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

  // Rows whose cells in this block are those of one row, or a range of them, are computed together.
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
      pairs_.attend_block(reference, shares, n_shares);
    }
  }

  const RowView* const views_;
  const int64_t n_rows_;
  Pairs& pairs_;
  int64_t next_[kMaxRows];  // by row: the first cell not visited
};

static inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

// How many heads of a group are computed together: all, except in very wide groups.
static inline int64_t most_pairs(const AttendArgs& args) {
  return smaller(kMaxPairs, kStateFloats / args.kv.value_dim);
}
static inline int64_t most_heads(const AttendArgs& args) {
  return smaller(args.n_heads / args.kv.n_kv_heads, most_pairs(args));
}

// The running result over spans for up to kMaxPairs pairs; the caller owns the outputs.
struct Spans {
  float m[kMaxPairs], l[kMaxPairs];

  Spans() {
    for (int64_t p = 0; p < kMaxPairs; ++p) m[p] = -__builtin_inff(), l[p] = 0.0f;
  }
  // A pair without cells in the span has lb = 0 and is skipped: -inf against -inf would give a NaN.
  template <class Out, class OutB>
  void merge(int64_t n_pairs, int64_t dim, const float* mb, const float* lb, Out out, OutB out_b) {
    Spans old = *this;
    float keep[kMaxPairs], take[kMaxPairs];
    merge_weights(n_pairs, m, l, mb, lb, keep, take);
    for (int64_t p = 0; p < n_pairs; ++p)
      if (lb[p] == 0.0f)
        m[p] = old.m[p], l[p] = old.l[p];
      else
        merge_outputs(dim, out(p), out_b(p), keep[p], take[p]);
  }
};

// The sinks of pairs that begin with query head `head`, after all spans.
template <class Out>
static void add_sinks(const AttendArgs& args, int64_t head, int64_t n_heads, int64_t n_pairs,
                      Spans& spans, Out out) {
  float sinks[kMaxPairs] = {}, keep[kMaxPairs];
  for (int64_t p = 0; p < n_pairs; ++p) sinks[p] = args.sinks[head + p % n_heads];
  merge_sinks(n_pairs, spans.m, spans.l, sinks, keep);
  for (int64_t p = 0; p < n_pairs; ++p) keep_output(args.kv.value_dim, out(p), keep[p]);
}

static void attend(const AttendArgs& args, int64_t row_begin, int64_t row_end, int64_t kv_head) {
  const int64_t dim = args.kv.value_dim, group = args.n_heads / args.kv.n_kv_heads;
  const int64_t head_step = most_heads(args);
  const int64_t row_step = smaller(kMaxRows, most_pairs(args) / head_step);
  for (int64_t h = 0; h < group; h += head_step) {
    const int64_t head = kv_head * group + h, n_heads = smaller(head_step, group - h);
    for (int64_t row = row_begin; row < row_end; row += row_step) {
      const int64_t n_rows = smaller(row_step, row_end - row), n_pairs = n_rows * n_heads;
      const auto out = [&](int64_t p) {
        return args.out + (row + p / n_heads) * args.out_stride + (head + p % n_heads) * dim;
      };
      for (int64_t p = 0; p < n_pairs; ++p)
        for (int64_t i = 0; i < dim; i += 16) Simd::store(out(p) + i, Simd::zero());
      Pairs pairs(args, row, n_rows, kv_head, head, n_heads);
      Walk walk(args.views + row, n_rows, pairs);
      Spans spans;
      for (int64_t span = walk.next_span(); span >= 0; span = walk.next_span()) {
        walk.visit(span);
        spans.merge(n_pairs, dim, pairs.m(), pairs.l(), out,
                    [&](int64_t p) { return pairs.out(p); });
        pairs.reset();
      }
      if (args.sinks) add_sinks(args, head, n_heads, n_pairs, spans, out);
      for (int64_t p = 0; p < n_pairs; ++p) finish_output(dim, out(p), spans.l[p]);
    }
  }
}

static void attend_span(const AttendArgs& args, int64_t row, int64_t kv_head, int64_t span,
                        float* partial) {
  const int64_t dim = args.kv.value_dim, group = args.n_heads / args.kv.n_kv_heads;
  for (int64_t h = 0; h < group; h += most_heads(args)) {
    const int64_t n_heads = smaller(most_heads(args), group - h);
    Pairs pairs(args, row, 1, kv_head, kv_head * group + h, n_heads);
    Walk walk(args.views + row, 1, pairs);
    if (const int64_t first = walk.next_span(); first >= 0) {
      walk.seek(first + span);
      walk.visit(first + span);
    }
    for (int64_t p = 0; p < n_heads; ++p) {
      float* to = partial + (h + p) * (dim + 2);
      for (int64_t i = 0; i < dim; i += 16) Simd::store(to + i, Simd::load(pairs.out(p) + i));
      to[dim] = pairs.m()[p];
      to[dim + 1] = pairs.l()[p];
    }
  }
}

static void attend_merge(const AttendArgs& args, int64_t row, int64_t kv_head,
                         const float* partials, int64_t n_spans) {
  const int64_t dim = args.kv.value_dim, group = args.n_heads / args.kv.n_kv_heads;
  for (int64_t h = 0; h < group; ++h) {
    float* out = args.out + row * args.out_stride + (kv_head * group + h) * dim;
    for (int64_t i = 0; i < dim; i += 16) Simd::store(out + i, Simd::zero());
    Spans spans;
    for (int64_t span = 0; span < n_spans; ++span) {
      const float* part = partials + (span * group + h) * (dim + 2);
      const float mb[16] = {part[dim]}, lb[16] = {part[dim + 1]};
      spans.merge(
          1, dim, mb, lb, [&](int64_t) { return out; }, [&](int64_t) { return part; });
    }
    if (args.sinks) add_sinks(args, kv_head * group + h, 1, 1, spans, [&](int64_t) { return out; });
    finish_output(dim, out, spans.l[0]);
  }
}

#include "kernels/attention/text.inl"

static inline void fill_attention(KernelTable& t) {
  t.store_text_keys = store_text_keys;
  t.attend_text = attend_text;
  t.store_kv = store_kv;
  t.load_k = load_k;
  t.store_k = store_k;
  t.attend = attend;
  t.attend_span = attend_span;
  t.attend_merge = attend_merge;
}
