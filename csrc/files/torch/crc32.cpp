#include "files/torch/crc32.h"

#include <array>

#include "files/cursor.h"

namespace pyflow {
namespace {

// Table 0 is the usual one, of a byte; table i that of a byte with i zero bytes behind it, so that
// eight bytes are looked up at once instead of one after the other (Kounavis and Berry, 2005).
constexpr auto kTables = [] {
  std::array<std::array<uint32_t, 256>, 8> tables{};
  for (uint32_t b = 0; b < 256; ++b) {
    uint32_t crc = b;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0xEDB88320u : 0);
    tables[0][b] = crc;
  }
  for (size_t t = 1; t < 8; ++t)
    for (size_t b = 0; b < 256; ++b) {
      const uint32_t before = tables[t - 1][b];
      tables[t][b] = (before >> 8) ^ tables[0][before & 0xFF];
    }
  return tables;
}();

}  // namespace

uint32_t crc32(const uint8_t* data, size_t nbytes) {
  uint32_t crc = ~0u;
  for (; nbytes >= 8; nbytes -= 8, data += 8) {
    const uint64_t eight = load<uint64_t>(data) ^ crc;
    crc = 0;
    for (size_t i = 0; i < 8; ++i) crc ^= kTables[7 - i][(eight >> (8 * i)) & 0xFF];
  }
  for (; nbytes > 0; --nbytes, ++data) crc = (crc >> 8) ^ kTables[0][(crc ^ *data) & 0xFF];
  return ~crc;
}

}  // namespace pyflow
