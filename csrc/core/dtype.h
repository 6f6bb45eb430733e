// The element types of tensors, generated from quant/formats.def.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace pyflow {

enum class DType : uint8_t {
#define PYFLOW_FORMAT(name, id, block, bytes) name,
#include "quant/formats.def"
#undef PYFLOW_FORMAT
};

struct DTypeInfo {
  DType dtype;
  std::string_view name;
  uint32_t gguf_id;
  uint32_t block;        // weights per block
  uint32_t block_bytes;  // bytes per block
};

inline constexpr std::array kDTypes = {
#define PYFLOW_FORMAT(name, id, block, bytes) DTypeInfo{DType::name, #name, id, block, bytes},
#include "quant/formats.def"
#undef PYFLOW_FORMAT
};
inline constexpr size_t kDTypeCount = kDTypes.size();

constexpr const DTypeInfo& info(DType t) { return kDTypes[static_cast<size_t>(t)]; }

constexpr std::optional<DType> dtype_from_gguf(uint32_t id) {
  for (const auto& d : kDTypes)
    if (d.gguf_id == id) return d.dtype;
  return std::nullopt;
}

}  // namespace pyflow
