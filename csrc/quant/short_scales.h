// What 256 weights of IQ4_XS or Q3H_K begin with: an f16 and eight scales of 6 bits, in 8 bytes.
//
//   scale j: low 4 bits in nibble j of scales_l, high 2 bits in bits 2j of scales_h; 32 is zero.
//
// In a tile, where scales are numbers with a sign, 128 bytes:  a dword per row, byte j scale j |
// high
//   2 bits of scale j + 4 << 6 | a word per row, nibble j low 4 bits of scale j + 4 | d[16] f16
#pragma once

#include "quant/encoding.h"
#include "quant/half.h"
#include "quant/planes.h"

namespace pyflow::quant {

struct ShortScales {
  uint16_t d, scales_h;
  uint8_t scales_l[4];

  static constexpr int kTileBytes = 128;

  int get(int j) const {
    return ((scales_l[j / 2] >> j % 2 * 4 & 15) | (scales_h >> 2 * j & 3) << 4) - 32;
  }
  // Onto zeros.
  void set(const Fields& f) {
    d = f.d;
    for (int j = 0; j < 8; ++j) {
      const uint8_t low = f.scales[j] & 15, high = f.scales[j] >> 4;
      scales_l[j / 2] = static_cast<uint8_t>(scales_l[j / 2] | low << j % 2 * 4);
      scales_h = static_cast<uint16_t>(scales_h | high << 2 * j);
    }
  }

  void put(uint8_t* p, int lane) const {
    uint32_t first = 0, second = 0;
    for (int j = 0; j < 4; ++j) {
      const auto low = static_cast<uint32_t>(get(j) & 63),
                 high = static_cast<uint32_t>(get(j + 4) & 63);
      first |= (low | high >> 4 << 6) << 8 * j;
      second |= (high & 15) << 4 * j;
    }
    store32(p + 4 * lane, first);
    store16(p + 64 + 2 * lane, static_cast<uint16_t>(second));
    store16(p + 96 + 2 * lane, d);
  }
  void take(const uint8_t* p, int lane) {
    const uint32_t first = load32(p + 4 * lane), second = load16(p + 64 + 2 * lane);
    Fields f;
    f.d = load16(p + 96 + 2 * lane);
    for (int j = 0; j < 4; ++j) {
      const uint32_t high = (second >> 4 * j & 15) | (first >> 8 * j >> 6 & 3) << 4;
      f.scales[j] = static_cast<uint8_t>((first >> 8 * j & 63) ^ 32);
      f.scales[j + 4] = static_cast<uint8_t>(high ^ 32);
    }
    *this = {};
    set(f);
  }

  // d * (scale - 32), exact in f32: 11 bits times 6.
  template <class S>
  static inline void load(const uint8_t* p, typename S::F* s) {
    using I = typename S::I;
    const auto* words = reinterpret_cast<const uint16_t*>(p + 64);
    const I first = S::load_i32(reinterpret_cast<const int32_t*>(p));
    const I second = S::template shr<16>(S::bits_i(S::load_bf16(words)));
    const typename S::F d = S::load_f16(words + 16);
    // The four nibbles to four bytes.
    I low = S::iand(S::ior(second, S::template shl<8>(second)), S::iset1(0x00ff00ff));
    low = S::iand(S::ior(low, S::template shl<4>(low)), S::iset1(0x0f0f0f0f));
    const I high = S::iand(S::template shr<2>(first), S::iset1(0x30303030));
    scaled<S>(first, d, s);
    scaled<S>(S::ior(low, high), d, s + 4);
  }

 private:
  // d times the low six bits of each byte, the highest of which is their sign.
  template <class S>
  static inline void scaled(typename S::I bytes, typename S::F d, typename S::F* s) {
    s[0] = S::mul(d, S::to_f(S::template sar<26>(S::template shl<26>(bytes))));
    s[1] = S::mul(d, S::to_f(S::template sar<26>(S::template shl<18>(bytes))));
    s[2] = S::mul(d, S::to_f(S::template sar<26>(S::template shl<10>(bytes))));
    s[3] = S::mul(d, S::to_f(S::template sar<26>(S::template shl<2>(bytes))));
  }
};
static_assert(sizeof(ShortScales) == 8);

}  // namespace pyflow::quant
