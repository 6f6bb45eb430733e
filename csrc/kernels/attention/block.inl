// One logical block: its cells, their scores for many pairs, and how it joins the blocks before it.
#include "kernels/attention/tiles.inl"

// The cells of a block that a row sees, with the facts that all rows with the same cells share.
struct Block {
  RowView cells;
  bool gapless;  // positions follow one another
  int64_t n_pieces;
  Piece pieces[kLogicalBlock];
  float lane_ids[kLogicalBlock];  // lane_ids[i] = i where there is a cell, else +inf; unset if
                                  // gapless

  int64_t lane(int64_t i) const { return cells.positions[i] & (kLogicalBlock - 1); }
};

// Usually both slots and positions of the cells are consecutive; then no cell needs a look of its
// own.
static inline void describe(const RowView& cells, Block& block) {
  block.cells = cells;
  block.n_pieces = 0;
  const int32_t slot0 = cells.slots[0], position0 = cells.positions[0];
  block.gapless = cells.positions[cells.n - 1] - position0 == cells.n - 1;
  int32_t jumps = 0;
  for (int32_t i = 0; i < cells.n; ++i) jumps |= cells.slots[i] ^ (slot0 + i);
  for (int64_t i = 0, n; i < cells.n; i += n) {
    const int64_t slot = cells.slots[i], most = 16 - (slot & 15);
    n = most < cells.n - i ? most : cells.n - i;
    if (jumps || !block.gapless) {
      int64_t same = 1;
      while (same < n && cells.slots[i + same] == slot + same &&
             cells.positions[i + same] == cells.positions[i] + same)
        ++same;
      n = same;
    }
    block.pieces[block.n_pieces++] = {slot, block.lane(i), n};
  }
  if (block.gapless) return;
  for (float& id : block.lane_ids) id = __builtin_inff();
  for (int64_t i = 0; i < cells.n; ++i)
    block.lane_ids[block.lane(i)] = static_cast<float>(block.lane(i));
}

// The biases of sixteen keys of a head, the first of which is `ahead` positions after the row. Args:
// AttendArgs or TextArgs.
template <class Args>
static inline Simd::F distance_biases(const Args& args, int64_t head, int64_t ahead) {
  const int64_t reach = args.bias_reach;
  const float* row = args.bias + head * (2 * reach + 1);
  if (ahead >= -reach && ahead + 15 <= reach) return Simd::load(row + ahead + reach);
  float lanes[16];
  for (int64_t i = 0; i < 16; ++i) {
    const int64_t at = ahead + i < -reach ? -reach : ahead + i > reach ? reach : ahead + i;
    lanes[i] = row[at + reach];
  }
  return Simd::load(lanes);
}

// How far from a row of a head the cell of lane 0 is: `ahead` positions after it.
struct Distances {
  int64_t head;
  float slope, ahead;
};

// Turns raw dots into scores, -inf on lanes outside [first, last] or without a cell. Distances count
// with slopes and biases alone. Returns the maximum.
static inline float finish_scores(const AttendArgs& args, const Block& block, int64_t first,
                                  int64_t last, const Distances& at, float* s) {
  using S = Simd;
  alignas(64) static const float lanes[kLogicalBlock] = {
      0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21,
      22, 23, 24, 25, 26, 27, 28, 29, 30, 31, 32, 33, 34, 35, 36, 37, 38, 39, 40, 41, 42, 43,
      44, 45, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 61, 62, 63};
  const float* ids = block.gapless ? lanes : block.lane_ids;
  const S::F low = S::set1(static_cast<float>(first)), high = S::set1(static_cast<float>(last));
  const S::F ninf = S::set1(-__builtin_inff()), scale = S::set1(args.scale);
  S::F top = ninf;
  for (int64_t v = first / 16; v <= last / 16; ++v) {
    S::F x = S::mul(S::load(s + v * 16), scale);
    if (args.softcap > 0.0f) x = softcap_lanes(x, S::set1(args.softcap));
    // Whole numbers below 2^24: exact.
    if (args.bias)
      x = S::add(x, distance_biases(args, at.head, static_cast<int64_t>(at.ahead) + v * 16));
    if (args.slopes)
      x = S::fma(S::set1(at.slope), S::add(S::load(lanes + v * 16), S::set1(at.ahead)), x);
    if (!block.gapless || v * 16 < first || v * 16 + 15 > last) {
      const S::F id = S::load(ids + v * 16);
      x = S::where_less(id, low, ninf, S::where_less(high, id, ninf, x));
    }
    S::store(s + v * 16, x);
    top = S::max(x, top);
  }
  return S::reduce_max(top);
}

// Turns scores into weights exp(score - max). Returns their sum, lane by lane in a fixed tree.
static inline float weigh(int64_t first, int64_t last, float max, float* s) {
  using S = Simd;
  const S::F m = S::set1(max);
  S::F p[4];
#pragma GCC unroll 4
  for (int64_t v = 0; v < 4; ++v)
    if (first / 16 <= v && v <= last / 16) {
      p[v] = exp_nonpositive_lanes(S::sub(S::load(s + v * 16), m));
      S::store(s + v * 16, p[v]);
    } else {
      p[v] = S::zero();
    }
  return S::reduce_add(S::add(S::add(p[0], p[1]), S::add(p[2], p[3])));
}

// Puts weights in the order of the cells: closes the gaps between positions.
static inline const float* by_cell(const Block& block, float* weights) {
  if (block.gapless) return weights + block.lane(0);
  for (int64_t i = 0; i < block.cells.n; ++i) weights[i] = weights[block.lane(i)];
  return weights;
}

// Joins (mb, lb) into (m, l), and returns the factors of both outputs: out = fma(out, keep, out_b *
// take).
static inline void merge_weights(int64_t n, float* m, float* l, const float* mb, const float* lb,
                                 float* keep, float* take) {
  using S = Simd;
  for (int64_t i = 0; i < n; i += 16) {
    const S::F old_m = S::load(m + i), new_m = S::load(mb + i), top = S::max(old_m, new_m);
    const S::F k = exp_nonpositive_lanes(S::sub(old_m, top));
    const S::F t = exp_nonpositive_lanes(S::sub(new_m, top));
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

// Joins the sinks of pairs, scores of no cell, into (m, l), and returns the factor of outputs.
static inline void merge_sinks(int64_t n, float* m, float* l, const float* sinks, float* keep) {
  float ones[16], take[16];
  for (float& one : ones) one = 1.0f;
  for (int64_t i = 0; i < n; i += 16)
    merge_weights(1, m + i, l + i, sinks + i, ones, keep + i, take);
}

static inline void keep_output(int64_t n, float* out, float keep) {
  for (int64_t i = 0; i < n; i += 16)
    Simd::store(out + i, Simd::fma(Simd::load(out + i), Simd::set1(keep), Simd::zero()));
}

// out /= l; a row that saw no cell has l = 0 and stays zero.
static inline void finish_output(int64_t n, float* out, float l) {
  if (l == 0.0f) return;
  for (int64_t i = 0; i < n; i += 16)
    Simd::store(out + i, Simd::div(Simd::load(out + i), Simd::set1(l)));
}
