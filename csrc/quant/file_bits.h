// Bit fields as the blocks of a file hold them, to one byte per value and back. The setters expect
// zeroed bytes and keep whatever other bits are there.
#pragma once

#include <cstdint>

namespace pyflow::quant {

// n bytes hold 2n values: the low nibbles, then the high ones.
inline void get_nibbles(const uint8_t* qs, int n, uint8_t* q) {
  for (int j = 0; j < n; ++j) {
    q[j] = qs[j] & 15;
    q[j + n] = qs[j] >> 4;
  }
}
inline void set_nibbles(uint8_t* qs, int n, const uint8_t* q) {
  for (int j = 0; j < n; ++j) qs[j] = static_cast<uint8_t>((q[j] & 15) | (q[j + n] & 15) << 4);
}

// n bytes hold 2n values: value 2i in the low, 2i + 1 in the high nibble of byte i.
inline void get_neighbours(const uint8_t* qs, int n, uint8_t* q) {
  for (int j = 0; j < 2 * n; ++j) q[j] = qs[j / 2] >> j % 2 * 4 & 15;
}
inline void set_neighbours(uint8_t* qs, int n, const uint8_t* q) {
  for (int j = 0; j < n; ++j)
    qs[j] = static_cast<uint8_t>((q[2 * j] & 15) | (q[2 * j + 1] & 15) << 4);
}

// 32 values' fifth bits in a little-endian word (bytes here): bit j is value j's.
inline void get_fifth_bits(const uint8_t* qh, uint8_t* q) {
  for (int j = 0; j < 32; ++j) q[j] = static_cast<uint8_t>(q[j] | (qh[j / 8] >> j % 8 & 1) << 4);
}
inline void set_fifth_bits(uint8_t* qh, const uint8_t* q) {
  for (int j = 0; j < 32; ++j)
    qh[j / 8] = static_cast<uint8_t>(qh[j / 8] | (q[j] >> 4 & 1) << j % 8);
}

// Two halves of 128 values; in each, 32 bytes hold four runs of 32 values, two bits each from the
// low end: value 128 * half + 32 * run + l is bits 2 * run of byte 32 * half + l. `shift`: where in
// q.
inline void get_two_bits(const uint8_t* qs, uint8_t* q, int shift) {
  for (int half = 0; half < 2; ++half)
    for (int run = 0; run < 4; ++run)
      for (int l = 0; l < 32; ++l) {
        uint8_t& v = q[128 * half + 32 * run + l];
        v = static_cast<uint8_t>(v | (qs[32 * half + l] >> 2 * run & 3) << shift);
      }
}
inline void set_two_bits(uint8_t* qs, const uint8_t* q, int shift) {
  for (int half = 0; half < 2; ++half)
    for (int run = 0; run < 4; ++run)
      for (int l = 0; l < 32; ++l) {
        uint8_t& b = qs[32 * half + l];
        b = static_cast<uint8_t>(b | (q[128 * half + 32 * run + l] >> shift & 3) << 2 * run);
      }
}

// Eight runs of 32 values share 32 bytes: bit `run` of byte l is a bit of value 32 * run + l.
inline void get_bits(const uint8_t* bits, uint8_t* q, int shift) {
  for (int run = 0; run < 8; ++run)
    for (int l = 0; l < 32; ++l) {
      uint8_t& v = q[32 * run + l];
      v = static_cast<uint8_t>(v | (bits[l] >> run & 1) << shift);
    }
}
inline void set_bits(uint8_t* bits, const uint8_t* q, int shift) {
  for (int run = 0; run < 8; ++run)
    for (int l = 0; l < 32; ++l)
      bits[l] = static_cast<uint8_t>(bits[l] | (q[32 * run + l] >> shift & 1) << run);
}

}  // namespace pyflow::quant
