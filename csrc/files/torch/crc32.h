// CRC-32 as zip archives have it (reflected polynomial 0xEDB88320).
#pragma once

#include <cstddef>
#include <cstdint>

namespace pyflow {

uint32_t crc32(const uint8_t* data, size_t nbytes);

}  // namespace pyflow
