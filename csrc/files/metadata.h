// What a file says of itself besides its tensors, in one form for all file formats.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "files/gguf/types.h"

namespace pyflow {

// An integer of more than 64 bits: little-endian, two's complement.
struct BigInt {
  std::string bytes;
};
using MetadataScalar =
    std::variant<std::monostate, bool, int64_t, uint64_t, double, std::string, BigInt>;
// Arrays stay in the file, as GGUF has them.
using MetadataValue = std::variant<MetadataScalar, std::vector<MetadataScalar>, GgufArray>;

struct MetadataEntry {
  std::string key;  // "optimizer.lr"
  MetadataValue value;
};

}  // namespace pyflow
