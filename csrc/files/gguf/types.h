// Types of values in GGUF's metadata, and arrays of them.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

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

// An array as it lies in the file; valid while the GgufFile lives.
struct GgufArray {
  GgufType type = GgufType::U8;
  uint64_t count = 0;
  const uint8_t* data = nullptr;  // the values, one after the other, not aligned; bools are 0 or 1
  uint64_t nbytes = 0;
  std::vector<GgufArray> inner;  // the elements, when they are arrays themselves

  // The elements, when they are strings. FormatError when the file has been rewritten since it was
  // opened.
  std::vector<std::string_view> strings() const;
};

}  // namespace pyflow
