// Queries, keys, weights and values of attention as tiles of bf16, for tiles/attention.inl.
//
// A number x is two: hi = bf16(x) and lo = bf16(x - hi), which hold an f16 exactly and any other
// number to 2^-17. A product takes three of the four: lo * hi', hi * hi', hi * lo'.
//
//   left     [pair][step of 32][hi, lo][32 values]: 16 pairs are a tile whose rows lie apart
//   right    [32 columns][step of 32][hi, lo][16 columns]: tiles of 16 lines of pairs
//
// Scores: a step is 32 dims, columns are cells. Values: a step is 32 cells, columns are dims. Line i
// of a step has its numbers i and i + 16.

static constexpr int64_t kStep = 32;
static constexpr int64_t kStepBytes = kStep * 4;  // of a pair: hi, then lo
static constexpr int64_t kRightTile = 1024;

struct Parts {
  Lanes::I hi, lo;  // in the upper halves
};
static inline Parts split(Lanes::F x) {
  const Lanes::I hi = Lanes::iand(to_bf16(x), Lanes::iset1(static_cast<int32_t>(0xffff0000)));
  return {hi, to_bf16(Lanes::sub(x, Lanes::bits_f(hi)))};
}

// The upper halves of a in the lower halves of those of b, by other ports than high_halves().
static inline Lanes::I interleave(Lanes::I a, Lanes::I b) {
  return Lanes::imerge(b, Lanes::iset1(static_cast<int32_t>(0xffff0000)), Lanes::shr<16>(a));
}
static inline void store_line(Lanes::F a, Lanes::F b, uint8_t* hi, uint8_t* lo) {
  const Parts x = split(a), y = split(b);
  // As floats, which may stand where their weights stood.
  Lanes::store(reinterpret_cast<float*>(hi), Lanes::bits_f(interleave(x.hi, y.hi)));
  Lanes::store(reinterpret_cast<float*>(lo), Lanes::bits_f(Lanes::high_halves(x.lo, y.lo)));
}

static inline int64_t steps(int64_t n) { return (n + kStep - 1) / kStep; }

// A pair's query, filled up with zeros. A value that is not finite becomes a NaN whose payload
// cannot carry into its sign.
static inline void left_query(const float* q, int64_t dim, uint8_t* out) {
  const auto at = [&](int64_t d) {
    if (d >= dim) return Lanes::zero();
    const Lanes::F x = Lanes::load(q + d);
    return Lanes::where_less(Lanes::abs(x), Lanes::set1(__builtin_inff()), x,
                             Lanes::set1(__builtin_nanf("")));
  };
  for (int64_t d = 0; d < dim; d += kStep, out += kStepBytes)
    store_line(at(d), at(d + 16), out, out + kStepBytes / 2);
}

// Lanes of a block, first > last: none.
struct LaneRange {
  int64_t first = kLogicalBlock, last = -1;
  bool any() const { return first <= last; }
  bool has(int64_t lane) const { return first <= lane && lane <= last; }
  void join(const LaneRange& o) {
    first = o.first < first ? o.first : first;
    last = o.last > last ? o.last : last;
  }
};

// A pair's weights of some lanes, zeros elsewhere, in the place of the 64 floats.
static inline void left_weights(float* weights, const LaneRange& lanes) {
  static_assert(kLogicalBlock == 2 * kStep);
  const auto at = [&](int64_t v) {
    const bool seen = lanes.first < 16 * (v + 1) && lanes.last >= 16 * v;
    return seen ? Lanes::load(weights + 16 * v) : Lanes::zero();
  };
  const Lanes::F p[4] = {at(0), at(1), at(2), at(3)};
  auto* out = reinterpret_cast<uint8_t*>(weights);
  store_line(p[0], p[1], out, out + kStepBytes / 2);
  store_line(p[2], p[3], out + kStepBytes, out + kStepBytes * 3 / 2);
}
// As they were, but for their rounding.
static inline float weight_at(const float* left, int64_t lane) {
  const int64_t at = lane / kStep * kStep * 2 + lane % 16 * 2 + lane % kStep / 16;
  const auto part = [&](int64_t i) {
    uint16_t half;
    __builtin_memcpy(&half, reinterpret_cast<const uint8_t*>(left) + 2 * i, sizeof half);
    const uint32_t bits = static_cast<uint32_t>(half) << 16;
    float value;
    __builtin_memcpy(&value, &bits, sizeof value);
    return value;
  };
  return part(at) + part(at + kStep);
}

// Line i of tile `tile` of a group of 32 columns, and of a step.
static inline uint8_t* right_line(uint8_t* right, int64_t n_steps, int64_t group, int64_t step,
                                  int64_t tile, int64_t i) {
  return right + ((group * n_steps + step) * 4 + tile) * kRightTile + 64 * i;
}
static constexpr int64_t kToLow = 2 * kRightTile;  // from a tile of hi to that of lo

// The keys of a block. What stands in columns without a cell reaches no score that counts.
// floats: kChunk x kLaneStride.
static inline void right_keys(const KvView& kv, int64_t head, const Block& block, float* floats,
                              uint8_t* right) {
  const int64_t n_steps = steps(kv.key_dim);
  for (int64_t d = 0; d < kv.key_dim; d += kChunk) {
    const int64_t n_dims = kv.key_dim - d < kChunk ? kv.key_dim - d : kChunk;
    convert_keys(kv, head, block.pieces, block.n_pieces, d, n_dims, floats);
    for (int64_t s = 0; s < n_dims; s += kStep)
      for (int64_t i = 0; i < 16; ++i)
        for (int64_t lane = 0; lane < kLogicalBlock; lane += 16) {
          const float* key = floats + (s + i) * kLaneStride + lane;
          uint8_t* line =
              right_line(right, n_steps, lane / kStep, (d + s) / kStep, lane % kStep / 16, i);
          store_line(Lanes::load(key),
                     s + 16 < n_dims ? Lanes::load(key + 16 * kLaneStride) : Lanes::zero(), line,
                     line + kToLow);
        }
  }
}

// The values of a block. A value that is not finite must not meet the weight of a row that does not
// see it, not even zero: such cells are left out, and added apart.
template <class Rows>
class RightValues {
 public:
  RightValues(const Block& block, const Rows& rows, int64_t value_dim)
      : block_(block), rows_(rows), n_vectors_(value_dim / 16) {
    for (int8_t& cell : cell_) cell = -1;
    for (int64_t i = 0; i < block.cells.n; ++i) cell_[block.lane(i)] = static_cast<int8_t>(i);
  }

  void write(uint8_t* right) {
    if (write_finite(right)) return;
    for (int64_t i = 0; i < block_.cells.n; ++i) {
      if (is_finite(i)) continue;
      odd_[n_odd_++] = static_cast<int8_t>(i);
      cell_[block_.lane(i)] = -1;
    }
    write_finite(right);
  }

  // Adds what was left out of the lanes that a pair sees: 16 dims from 16 v on.
  Lanes::F add_odd(Lanes::F sum, const float* left, const LaneRange& seen, int64_t v) const {
    for (int64_t j = 0; j < n_odd_; ++j) {
      const int64_t lane = block_.lane(odd_[j]);
      if (seen.has(lane))
        sum = Lanes::fma(Lanes::set1(weight_at(left, lane)), rows_.at(odd_[j], v), sum);
    }
    return sum;
  }

 private:
  Lanes::F at(int cell, int64_t v) const { return cell < 0 ? Lanes::zero() : rows_.at(cell, v); }

  // Returns whether all values are finite.
  bool write_finite(uint8_t* right) const {
    Lanes::F odd = Lanes::zero();
    for (int64_t step = 0; step < kLogicalBlock / kStep; ++step)
      for (int64_t i = 0; i < 16; ++i)
        for (int64_t v = 0; v < n_vectors_; ++v) {
          const Lanes::F a = at(cell_[step * kStep + i], v),
                         b = at(cell_[step * kStep + 16 + i], v);
          odd = Lanes::fma(a, Lanes::zero(), Lanes::fma(b, Lanes::zero(), odd));
          uint8_t* line = right_line(right, kLogicalBlock / kStep, v / 2, step, v % 2, i);
          store_line(a, b, line, line + kToLow);
        }
    return Lanes::reduce_add(odd) == 0.0f;
  }
  bool is_finite(int64_t cell) const {
    Lanes::F odd = Lanes::zero();
    for (int64_t v = 0; v < n_vectors_; ++v)
      odd = Lanes::fma(rows_.at(cell, v), Lanes::zero(), odd);
    return Lanes::reduce_add(odd) == 0.0f;
  }

  const Block& block_;
  const Rows rows_;
  const int64_t n_vectors_;
  int8_t cell_[kLogicalBlock];  // by lane; -1: none
  int8_t odd_[kLogicalBlock];
  int64_t n_odd_ = 0;
};
