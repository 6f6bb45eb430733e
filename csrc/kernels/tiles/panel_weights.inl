// Weights as bf16 tiles, for panels.inl: 32 k x 16 outputs are sixteen lines of pairs.
//
//   line 2i      k 4i and 4i + 2 of each output     so an even chain of a tile's sums (emulator.h)
//   line 2i + 1  k 4i + 1 and 4i + 3                takes k mod 4 in {0, 1}, an odd one {2, 3}
//
// Quantized weights, where an output's byte q stands for s * (q - offset) + m and b = 256 for
// formats of eight bits, else 128:
//
//   z = fma(s, -(b + offset), m), without a minimum s * -(b + offset)
//   w = bf16(fma(s, b + q, z))                        b + q by bits: q goes below the exponent of b
//
// z is rounded, so a weight of zero may become 2^-17 s where s has more than 16 bits. bf16() rounds
// to nearest, ties away from zero. A scale or minimum of the file that is not finite makes NaNs.

static constexpr int64_t kPanelK = 32;       // of a tile of bf16
static constexpr int64_t kPanelTile = 1024;  // its bytes

// k of weights that are decoded at once, for two tiles 24 KiB, which stay in a first-level cache of
// 48 while activations pass. Chunks of 256 reached 0.97 of the speed, of 512 0.95 (Xeon with AMX).
static constexpr int64_t kChunkK = 384;
static constexpr int64_t kUnitK = 256;               // of the longest unit
static constexpr int64_t kChunkOffset = kUnitK / 2;  // chunks begin at multiples of it
static_assert(kChunkK % kChunkOffset == 0);

// Tiles [tile, tile + n_tiles) of weights, one or two, and k [k, k + n_k); n_k = 0: nothing.
struct Chunk {
  int64_t tile, n_tiles, k, n_k;
};

static inline Lanes::I to_bf16(Lanes::F f) {  // in the upper halves; not for NaNs of any payload
  return Lanes::iadd(Lanes::bits_i(f), Lanes::iset1(0x8000));
}

// Lines 2i, 2i + 1 from the weights of quad i, whose bf16 are the upper halves. The two lines take
// different instructions: while tiles are at work, shifts and fma compete for one port. With shifts
// for both, 64 and 128 rows lost 8 % (Xeon with AMX).
static inline void store_lines(Lanes::I w0, Lanes::I w1, Lanes::I w2, Lanes::I w3, uint8_t* lines) {
  const Lanes::I upper = Lanes::iset1(static_cast<int32_t>(0xffff0000));
  auto* out = reinterpret_cast<int32_t*>(lines);
  Lanes::store_i32(out, Lanes::imerge(w2, upper, Lanes::shr<16>(w0)));
  Lanes::store_i32(out + 16, Lanes::high_halves(w1, w3));
}

template <bool Byte>
static constexpr float kBase = Byte ? 256.0f : 128.0f;

// b + q for byte T of each lane: q goes below the exponent of b.
template <bool Byte, int T>
static inline Lanes::F number(Lanes::I bytes) {
  constexpr int kBit = Byte ? 15 : 16, kShift = kBit - 8 * T;
  Lanes::I moved;
  if constexpr (kShift >= 0) {
    moved = Lanes::shl<kShift>(bytes);
  } else {
    moved = Lanes::shr<-kShift>(bytes);
  }
  const Lanes::I mask = Lanes::iset1((Byte ? 0xff : 0x7f) << kBit);
  return Lanes::bits_f(Lanes::imerge(moved, mask, Lanes::bits_i(Lanes::set1(kBase<Byte>))));
}

// Four quads of bytes to eight lines. Byte: of eight bits, with a sign.
template <bool Byte>
static inline void store_quarter(const Lanes::B (&quads)[4], Lanes::F s, Lanes::F z,
                                 uint8_t* lines) {
  PYFLOW_UNROLL(4)
  for (int i = 0; i < 4; ++i) {
    const Lanes::I bytes = Lanes::as_i(Byte ? Lanes::bxor(quads[i], Lanes::bset1(0x80)) : quads[i]);
    store_lines(to_bf16(Lanes::fma(s, number<Byte, 0>(bytes), z)),
                to_bf16(Lanes::fma(s, number<Byte, 1>(bytes), z)),
                to_bf16(Lanes::fma(s, number<Byte, 2>(bytes), z)),
                to_bf16(Lanes::fma(s, number<Byte, 3>(bytes), z)), lines + 128 * i);
  }
}

// A NaN's payload must not carry into its sign when it is rounded.
struct FiniteScales : Lanes {
  static inline F load_f16(const uint16_t* p) {
    const F f = Lanes::load_f16(p);
    return where_less(abs(f), set1(__builtin_inff()), f, set1(__builtin_nanf("")));
  }
};

// A queue of the quarters (16 k) of a chunk: tile by tile in turn, k ascending.
class PanelQueue {
 public:
  int64_t left() const { return end_ - at_; }

 protected:
  void fill(const Chunk& chunk, uint8_t* panels) {
    chunk_ = chunk;
    panels_ = panels;
    at_ = 0;
    end_ = chunk.n_k / 16 * chunk.n_tiles;
  }
  struct Place {
    int64_t tile, quarter;  // of the chunk
    uint8_t* lines;
  };
  Place take() {
    const int64_t tile = at_ & (chunk_.n_tiles - 1), quarter = at_ >> (chunk_.n_tiles - 1);
    ++at_;
    return {tile, quarter, panels_ + tile * kChunkK / kPanelK * kPanelTile + quarter * 512};
  }
  Chunk chunk_ = {};

 private:
  uint8_t* panels_ = nullptr;
  int64_t at_ = 0, end_ = 0;
};

template <class Format>
class QuantizedPanels : public PanelQueue {
 public:
  explicit QuantizedPanels(const MatmulArgs& args) : args_(args) {}

  // Begins with a chunk; panels take two tiles of kChunkK k, one after the other.
  void start(const Chunk& chunk, uint8_t* panels) {
    fill(chunk, panels);
    const int64_t first = chunk.k / kUnit, last = (chunk.k + chunk.n_k + kUnit - 1) / kUnit;
    skip_ = (chunk.k - first * kUnit) / 16;
    for (int64_t i = 0; i < chunk.n_tiles; ++i) {
      unit_[i] = args_.tiles + ((chunk.tile + i) * n_units() + first) * Format::kUnitBytes;
      for (int64_t u = 0; u < last - first; ++u)
        load_scales(unit_[i] + u * Format::kUnitBytes, s_[i] + u * kUnit / 16,
                    z_[i] + u * kUnit / 16);
    }
  }

  void quarter() {
    const Place p = take();
    const int64_t q = p.quarter + skip_, piece = q / 4;
    const uint8_t* at = unit_[p.tile] + piece / Format::kPieces * Format::kUnitBytes +
                        Format::kScaleBytes + piece % Format::kPieces * Format::kPieceBytes;
    const Lanes::F s = Lanes::load(s_[p.tile][q]), z = Lanes::load(z_[p.tile][q]);
    if (q % 4 == 0) {
      prefetch_quarters(at);
      decode<0>(at, s, z, p.lines);
    } else if (q % 4 == 1) {
      decode<1>(at, s, z, p.lines);
    } else if (q % 4 == 2) {
      decode<2>(at, s, z, p.lines);
    } else {
      decode<3>(at, s, z, p.lines);
    }
  }

 private:
  static constexpr bool kByte = Format::kSigned;  // eight bits
  static_assert(kByte || Format::kMax < 128);
  static constexpr int64_t kUnit = 64 * Format::kPieces;

  int64_t n_units() const { return (args_.k + kUnit - 1) / kUnit; }

  static constexpr float zero_point() {
    if constexpr (kByte) {
      return 128.0f;
    } else {
      return static_cast<float>(Format::kOffset);
    }
  }

  static void load_scales(const uint8_t* unit, float (*s)[kTileRows], float (*z)[kTileRows]) {
    constexpr int kSubs = kUnit / Format::kSubBlock, kQuarters = Format::kSubBlock / 16;
    Lanes::F scales[kSubs], minimums[kSubs];
    Format::template scales<FiniteScales>(unit, scales, minimums);
    const Lanes::F below = Lanes::set1(-(kBase<kByte> + zero_point()));
    for (int j = 0; j < kSubs; ++j) {
      Lanes::F offset;
      if constexpr (Format::kMinimum) {
        offset = Lanes::fma(scales[j], below, minimums[j]);
      } else {
        offset = Lanes::mul(scales[j], below);
      }
      for (int i = 0; i < kQuarters; ++i) {
        Lanes::store(s[j * kQuarters + i], scales[j]);
        Lanes::store(z[j * kQuarters + i], offset);
      }
    }
  }

  static void prefetch_quarters(const uint8_t* piece) {
    prefetch_quarter<Format, Prefetch::kFar, 0>(piece);
    prefetch_quarter<Format, Prefetch::kFar, 1>(piece);
    prefetch_quarter<Format, Prefetch::kFar, 2>(piece);
    prefetch_quarter<Format, Prefetch::kFar, 3>(piece);
  }

  template <int Q>
  static void decode(const uint8_t* piece, Lanes::F s, Lanes::F z, uint8_t* lines) {
    Lanes::B quads[4];
    Format::template weights<Lanes, Q>(piece, quads);
    store_quarter<kByte>(quads, s, z, lines);
  }

  const MatmulArgs& args_;
  static constexpr int64_t kQuarters = (kChunkK + kUnitK - kChunkOffset) / 16;
  alignas(64) float s_[2][kQuarters][kTileRows], z_[2][kQuarters][kTileRows];
  const uint8_t* unit_[2];
  int64_t skip_ = 0;  // quarters of the first unit that another chunk has
};

// BF16 weights: as they are, and zeros after the last k.
class FloatPanels : public PanelQueue {
 public:
  explicit FloatPanels(const MatmulArgs& args) : args_(args) {}

  void start(const Chunk& chunk, uint8_t* panels) { fill(chunk, panels); }

  void quarter() {
    const Place p = take();
    const int64_t k = chunk_.k + 16 * p.quarter, tile_bytes = (args_.k * kUnitBytes + 63) / 64 * 64;
    const uint8_t* at = args_.tiles + (chunk_.tile + p.tile) * tile_bytes + k * kUnitBytes;
    alignas(64) uint8_t padded[16 * kUnitBytes] = {};
    if (args_.k - k < 16) {
      if (args_.k > k)
        __builtin_memcpy(padded, at, static_cast<size_t>((args_.k - k) * kUnitBytes));
      at = padded;
    }
    for (int i = 0; i < 4; ++i) {
      Simd::prefetch_far(at + kFarAhead + 128 * i);
      Simd::prefetch(at + kNearAhead + 128 * i);
      const auto word = [&](int j) {
        return Lanes::bits_i(
            Lanes::load_bf16(reinterpret_cast<const uint16_t*>(at + (4 * i + j) * kUnitBytes)));
      };
      store_lines(word(0), word(1), word(2), word(3), p.lines + 128 * i);
    }
  }

 private:
  static constexpr int64_t kUnitBytes = quant::BF16::kUnitBytes;
  const MatmulArgs& args_;
};
