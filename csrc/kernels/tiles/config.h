// How tiles are configured: what LDTILECFG reads (Intel SDM, volume 1, chapter 18).
#pragma once

#include <cstdint>

namespace pyflow {

inline constexpr int kTiles = 8;  // registers of at most 16 rows of 64 bytes

struct alignas(64) TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};  // of each tile; those after the eighth must be 0
  uint8_t rows[16] = {};
};
static_assert(sizeof(TileConfig) == 64);

}  // namespace pyflow
