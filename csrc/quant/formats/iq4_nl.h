// IQ4_NL: 32 weights in 18 bytes, 4.5 bits each, on a non-linear grid.
//
//   d f16 | qs[16]      value j = kIq4Grid[nibble] * d, nibbles ordered as in Q4_0
//
// Tile unit, 16 rows x 64 k, 576 bytes:  d[2][16] f16 | Nibbles 512
#pragma once

#include "quant/encoding.h"
#include "quant/file_bits.h"
#include "quant/half.h"
#include "quant/planes.h"

namespace pyflow::quant {

// Shared with IQ4_XS; from ggml's kvalues_iq4nl. Internal linkage: kernels take its address.
alignas(16) static constexpr int8_t kIq4Grid[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                    1,    13,   25,  38,  53,  69,  89,  113};

using Iq4Points = Points<kIq4Grid, 16>;

struct IQ4_NL {
  struct Block {
    uint16_t d;
    uint8_t qs[16];
  };
  static_assert(sizeof(Block) == 18);

  static constexpr int kBlock = 32, kPieces = 1, kSubBlock = 32;
  static constexpr int kScaleBytes = 64, kPieceBytes = Nibbles::kBytes;
  static constexpr int kUnitBytes = kScaleBytes + kPieceBytes;
  static constexpr bool kSigned = true, kMinimum = false;
  static constexpr int kMax = 127;
  using Search = SymmetricBlocks<Iq4Points, 32, 60, 140, 20>;

  static void dequantize(const Block& b, float* out) {
    uint8_t q[32];
    get_nibbles(b.qs, 16, q);
    const float d = from_half(b.d);
    for (int j = 0; j < 32; ++j) out[j] = static_cast<float>(kIq4Grid[q[j]]) * d;
  }
  static Block assemble(const Fields& f) {
    Block b = {f.d, {}};
    set_nibbles(b.qs, 16, f.q);
    return b;
  }

  static void pack(const Block* b, int lane, uint8_t* unit) {
    uint8_t q[64];
    for (int i = 0; i < 2; ++i) {
      get_nibbles(b[i].qs, 16, q + 32 * i);
      store16(unit + 32 * i + 2 * lane, b[i].d);
    }
    Nibbles::put(unit + kScaleBytes, lane, q);
  }
  static void unpack(const uint8_t* unit, int lane, Block* b) {
    uint8_t q[64] = {};
    Nibbles::get(unit + kScaleBytes, lane, q);
    for (int i = 0; i < 2; ++i) {
      set_nibbles(b[i].qs, 16, q + 32 * i);
      b[i].d = load16(unit + 32 * i + 2 * lane);
    }
  }

  template <class S, int Q>
  static inline void weights(const uint8_t* piece, typename S::B (&w)[4]) {
    Nibbles::load<S, Q>(piece, w);
    for (int i = 0; i < 4; ++i) w[i] = S::s8_prepare(S::lut16(kIq4Grid, w[i]));
  }
  template <class S>
  static inline void scales(const uint8_t* unit, typename S::F* s, typename S::F*) {
    const auto* d = reinterpret_cast<const uint16_t*>(unit);
    s[0] = S::load_f16(d);
    s[1] = S::load_f16(d + 16);
  }
};

}  // namespace pyflow::quant
