// The two variable parts of a GGUF file; gguf.cpp puts them together.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "files/cursor.h"
#include "files/gguf/gguf.h"

namespace pyflow::gguf_sections {

// The least that an entry takes: key of one byte, type, value of one byte.
inline constexpr uint64_t kMinEntryBytes = 8 + 1 + 4 + 1;
// Name of one byte, number of dimensions, none of them, type, offset.
inline constexpr uint64_t kMinTensorBytes = 8 + 1 + 4 + 4 + 8;
inline constexpr uint32_t kDefaultAlignment = 32;
// A count says how many entries there will be; memory is only taken as they turn up.
inline constexpr uint64_t kMaxReserve = 4096;

struct Metadata {
  std::vector<GgufEntry> entries;
  uint32_t alignment = kDefaultAlignment;
};
Metadata read_metadata(Cursor& in, uint64_t count);

struct Tensors {
  std::vector<TensorRow> table;
  uint64_t data_offset = 0;
};
Tensors read_tensors(Cursor& in, uint64_t count, uint32_t alignment);

}  // namespace pyflow::gguf_sections
