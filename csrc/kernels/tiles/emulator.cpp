#include "kernels/tiles/emulator.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <initializer_list>

namespace pyflow::emulator {
namespace {

constexpr int kRows = 16, kBytes = 64, kLanes = kBytes / 4;

struct Tile {
  alignas(64) uint8_t bytes[kRows][kBytes];
};
struct State {
  Tile tiles[kTiles];
  TileConfig config;
  bool configured = false;
};
thread_local State state;

// Where the hardware raises #UD or #GP.
void require(bool allowed) {
  if (!allowed) __builtin_trap();
}
Tile& configured(int tile) {
  require(state.configured && state.config.rows[tile] != 0);
  return state.tiles[tile];
}

// Rows of C, and dwords in a row of A.
struct Size {
  int rows, depth;
};
Size check_dot(int c, int a, int b) {
  configured(c), configured(a), configured(b);
  const TileConfig& s = state.config;
  require(c != a && c != b && a != b && s.rows[c] == s.rows[a] &&
          s.row_bytes[c] == s.row_bytes[b] && s.row_bytes[a] == 4 * s.rows[b]);
  return {s.rows[c], s.row_bytes[a] / 4};
}

template <class Weight>
void dot_bytes(int c, int a, int b) {
  const Size size = check_dot(c, a, b);
  const Tile &left = state.tiles[a], &right = state.tiles[b];
  for (int m = 0; m < size.rows; ++m) {
    uint32_t sums[kLanes];
    std::memcpy(sums, state.tiles[c].bytes[m], sizeof sums);
    for (int k = 0; k < size.depth; ++k)
      for (int n = 0; n < kLanes; ++n) {
        int sum = 0;
        for (int i = 0; i < 4; ++i)
          sum += static_cast<int8_t>(left.bytes[m][4 * k + i]) *
                 static_cast<Weight>(right.bytes[k][4 * n + i]);
        sums[n] += static_cast<uint32_t>(sum);
      }
    std::memcpy(state.tiles[c].bytes[m], sums, state.config.row_bytes[c]);
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

float from_bf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

// The values of a tile of bf16, subnormals as zeros. Returns whether one of them is a NaN.
template <class Value>
bool widen(const Tile& tile, int rows, Value (*values)[2 * kLanes]) {
  bool any = false;
  for (int m = 0; m < rows; ++m) {
    uint16_t bits[2 * kLanes];
    std::memcpy(bits, tile.bytes[m], sizeof bits);
    for (int k = 0; k < 2 * kLanes; ++k) {
      const float x = flushed(from_bf16(bits[k]));
      any |= std::isnan(x);
      values[m][k] = x;
    }
  }
  return any;
}

// One row of sums.
void chains(const float* a, const double (*even)[kLanes], const double (*odd)[kLanes], int depth,
            float* sums) {
  float chain[2][kLanes] = {};
  for (int k = 0; k < depth; ++k)
    for (int n = 0; n < kLanes; ++n) {
      chain[0][n] = fused(a[2 * k], even[k][n], chain[0][n]);
      chain[1][n] = fused(a[2 * k + 1], odd[k][n], chain[1][n]);
    }
  for (int n = 0; n < kLanes; ++n)
    sums[n] = fused(1.0, flushed(sums[n]), fused(1.0, chain[0][n], chain[1][n]));
}
void chains_with_nan(const float* a, const double (*even)[kLanes], const double (*odd)[kLanes],
                     int depth, float* sums) {
  for (int n = 0; n < kLanes; ++n) {
    float chain[2] = {};
    for (int k = 0; k < depth; ++k) {
      chain[0] = fused_any(a[2 * k], static_cast<float>(even[k][n]), chain[0]);
      chain[1] = fused_any(a[2 * k + 1], static_cast<float>(odd[k][n]), chain[1]);
    }
    sums[n] = fused_any(1.0f, flushed(sums[n]), fused_any(1.0f, chain[0], chain[1]));
  }
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

void dot_s8(int c, int a, int b) { dot_bytes<int8_t>(c, a, b); }
void dot_su8(int c, int a, int b) { dot_bytes<uint8_t>(c, a, b); }

void dot_bf16(int c, int a, int b) {
  const Size size = check_dot(c, a, b);
  float left[kRows][2 * kLanes], right[kRows][2 * kLanes];
  bool nan = widen(state.tiles[a], size.rows, left);
  nan |= widen(state.tiles[b], size.depth, right);
  double even[kRows][kLanes], odd[kRows][kLanes];
  for (int k = 0; k < size.depth; ++k)
    for (int n = 0; n < kLanes; ++n) {
      even[k][n] = right[k][2 * n];
      odd[k][n] = right[k][2 * n + 1];
    }
  for (int m = 0; m < size.rows; ++m) {
    float sums[kLanes];
    std::memcpy(sums, state.tiles[c].bytes[m], sizeof sums);
    bool any = nan;
    for (const float sum : sums) any |= std::isnan(sum);
    (any ? chains_with_nan : chains)(left[m], even, odd, size.depth, sums);
    std::memcpy(state.tiles[c].bytes[m], sums, state.config.row_bytes[c]);
  }
}

}  // namespace pyflow::emulator
