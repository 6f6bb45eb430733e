#include "kernels/tiles/emulator.h"

#include "kernels/tiles/emulator_tile.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>

namespace pyflow::emulator {
namespace {

struct State {
  Tile tiles[kTiles];
  TileConfig config;
  bool configured = false;
};
thread_local State state;
bool by_avx2 = has_avx2();

// Where the hardware raises #UD or #GP.
void require(bool allowed) {
  if (!allowed) __builtin_trap();
}
Tile& configured(int tile) {
  require(state.configured && state.config.rows[tile] != 0);
  return state.tiles[tile];
}

Size check_dot(int c, int a, int b) {
  configured(c), configured(a), configured(b);
  const TileConfig& s = state.config;
  require(c != a && c != b && a != b && s.rows[c] == s.rows[a] &&
          s.row_bytes[c] == s.row_bytes[b] && s.row_bytes[a] == 4 * s.rows[b]);
  return {s.rows[c], s.row_bytes[a] / 4};
}

template <class Weight>
void dot_bytes_plainly(const Tile& left, const Tile& right, Tile& sums, Size size) {
  for (int m = 0; m < size.rows; ++m)
    for (int k = 0; k < size.depth; ++k)
      for (int n = 0; n < kLanes; ++n) {
        int sum = 0;
        for (int i = 0; i < 4; ++i)
          sum += static_cast<int8_t>(left.bytes[m][4 * k + i]) *
                 static_cast<Weight>(right.bytes[k][4 * n + i]);
        sums.words[m][n] += static_cast<uint32_t>(sum);
      }
}

// a * b + c for bf16 a, b, or 1 * b + c: in double the product is exact, and the sum is either
// exact or further from any point halfway between two f32 than its own rounding. So rounding it
// again rounds once. kTiny is where rounding to 24 bits begins to give 2^-126.
constexpr double kTiny = 0x1p-126 - 0x1p-151;
float fused(double a, double b, float c) {
  const double sum = a * b + static_cast<double>(c);
  return static_cast<float>(sum * (std::fabs(sum) < kTiny ? 0.0 : 1.0));
}
float flushed(float x) { return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x; }

// The same where some of these are NaN.
float fused_any(float a, float b, float c) {
  for (const float x : {a, b, c})
    if (std::isnan(x)) return std::bit_cast<float>(std::bit_cast<uint32_t>(x) | 0x400000u);
  const float sum = fused(a, b, c);
  return std::isnan(sum) ? std::bit_cast<float>(0xffc00000u) : sum;
}

float from_bf16(uint16_t bits) {
  return flushed(std::bit_cast<float>(static_cast<uint32_t>(bits) << 16));
}

// All sums of one lane, where anything may be a NaN.
float chains(const uint16_t* a, const Tile& right, int n, int depth, float sum) {
  float chain[2] = {};
  for (int k = 0; k < depth; ++k)
    for (const int odd : {0, 1})
      chain[odd] =
          fused_any(from_bf16(a[2 * k + odd]), from_bf16(right.halves[k][2 * n + odd]), chain[odd]);
  return fused_any(1.0f, flushed(sum), fused_any(1.0f, chain[0], chain[1]));
}
void dot_bf16_plainly(const Tile& left, const Tile& right, Tile& sums, Size size) {
  for (int m = 0; m < size.rows; ++m)
    for (int n = 0; n < kLanes; ++n) {
      uint32_t& sum = sums.words[m][n];
      sum = std::bit_cast<uint32_t>(
          chains(left.halves[m], right, n, size.depth, std::bit_cast<float>(sum)));
    }
}

// Lanes of C beyond its size stay.
template <class Dot>
void dot(int c, int a, int b, Dot add) {
  const Size size = check_dot(c, a, b);
  Tile sums = state.tiles[c];
  add(state.tiles[a], state.tiles[b], sums, size);
  for (int m = 0; m < size.rows; ++m)
    std::memcpy(state.tiles[c].bytes[m], sums.bytes[m], state.config.row_bytes[c]);
}

}  // namespace

void config(const TileConfig& config) {
  require(config.palette == 1 && config.start_row == 0);
  for (int i = 0; i < 16; ++i)
    require(i < kTiles ? config.rows[i] <= kRows && config.row_bytes[i] <= kBytes &&
                             (config.rows[i] != 0) == (config.row_bytes[i] != 0)
                       : config.rows[i] == 0 && config.row_bytes[i] == 0);
  state.config = config;
  state.configured = true;
  for (int i = 0; i < kTiles; ++i) std::memset(&state.tiles[i], 0, sizeof(Tile));
}

void release() { state.configured = false; }

void zero(int tile) { std::memset(&configured(tile), 0, sizeof(Tile)); }

void load(int tile, const void* p, int64_t stride) {
  zero(tile);
  for (int r = 0; r < state.config.rows[tile]; ++r)
    std::memcpy(state.tiles[tile].bytes[r], static_cast<const uint8_t*>(p) + r * stride,
                state.config.row_bytes[tile]);
}

void store(int tile, void* p, int64_t stride) {
  const Tile& t = configured(tile);
  for (int r = 0; r < state.config.rows[tile]; ++r)
    std::memcpy(static_cast<uint8_t*>(p) + r * stride, t.bytes[r], state.config.row_bytes[tile]);
}

void use_avx2(bool may) { by_avx2 = may && has_avx2(); }

void dot_s8(int c, int a, int b) {
  dot(c, a, b, [](const Tile& left, const Tile& right, Tile& sums, Size size) {
    by_avx2 ? dot_s8_by_avx2(left, right, sums, size)
            : dot_bytes_plainly<int8_t>(left, right, sums, size);
  });
}
void dot_su8(int c, int a, int b) {
  dot(c, a, b, [](const Tile& left, const Tile& right, Tile& sums, Size size) {
    by_avx2 ? dot_su8_by_avx2(left, right, sums, size)
            : dot_bytes_plainly<uint8_t>(left, right, sums, size);
  });
}
void dot_bf16(int c, int a, int b) {
  dot(c, a, b, [](const Tile& left, const Tile& right, Tile& sums, Size size) {
    if (!by_avx2 || !dot_bf16_by_avx2(left, right, sums, size))
      dot_bf16_plainly(left, right, sums, size);
  });
}

}  // namespace pyflow::emulator
