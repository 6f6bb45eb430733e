// The type numbers of values in GGUF's metadata.
#pragma once

#include <array>
#include <cstdint>

namespace pyflow {

enum class GgufType : uint32_t {
  U8,
  I8,
  U16,
  I16,
  U32,
  I32,
  F32,
  Bool,
  String,
  Array,
  U64,
  I64,
  F64
};
inline constexpr uint32_t kGgufTypeCount = 13;

// Bytes of a value of fixed size; 0 for strings and arrays.
constexpr uint32_t size_of(GgufType t) {
  constexpr std::array<uint8_t, kGgufTypeCount> kSizes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return kSizes[static_cast<size_t>(t)];
}

}  // namespace pyflow
