// The element types that tensors of checkpoints have, by name and by their numbers in GGUF. Most
// quantized ones come from quant/formats.def; here are those that this build only knows by name, and
// F64, which is read as F32.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/dtype.h"

namespace pyflow {

inline constexpr uint32_t kNoGgufId = UINT32_MAX;
inline constexpr uint32_t kOwnIds = 0x5046;  // upper half of the numbers of our own

// How a tensor of some type lies in the file; `supported` when this build can compute with it.
struct TensorType {
  uint32_t id;  // in GGUF, kNoGgufId where it has none
  std::string_view name;
  uint32_t block;        // weights per block
  uint32_t block_bytes;  // bytes per block
  bool supported = false;
};

// Known by name and size, so that files which hold them can be listed and checked. Formats that
// quant/formats.def adds later take precedence; their lines here are then of no use.
inline constexpr std::array kListedTypes = {
    TensorType{9, "Q8_1", 32, 40},
    TensorType{15, "Q8_K", 256, 292},
    TensorType{24, "I8", 1, 1},
    TensorType{25, "I16", 1, 2},
    TensorType{26, "I32", 1, 4},
    TensorType{27, "I64", 1, 8},
    TensorType{28, "F64", 1, 8, true},
    TensorType{41, "Q1_0", 128, 18},
    TensorType{kNoGgufId, "BOOL", 1, 1},
    TensorType{kNoGgufId, "U8", 1, 1},
    TensorType{kNoGgufId, "U16", 1, 2},
    TensorType{kNoGgufId, "U32", 1, 4},
    TensorType{kNoGgufId, "U64", 1, 8},
    TensorType{kNoGgufId, "C32", 1, 4},
    TensorType{kNoGgufId, "C64", 1, 8},
    TensorType{kNoGgufId, "C128", 1, 16},
    TensorType{kNoGgufId, "F8_E4M3", 1, 1},
    TensorType{kNoGgufId, "F8_E5M2", 1, 1},
    TensorType{kNoGgufId, "F8_E8M0", 1, 1},
    TensorType{kNoGgufId, "F8_E4M3FNUZ", 1, 1},
    TensorType{kNoGgufId, "F8_E5M2FNUZ", 1, 1},
    TensorType{kNoGgufId, "F6_E2M3", 4, 3},
    TensorType{kNoGgufId, "F6_E3M2", 4, 3},
    TensorType{kNoGgufId, "F4", 2, 1},
};

constexpr TensorType tensor_type(DType t) {
  return {info(t).gguf_id, info(t).name, info(t).block, info(t).block_bytes, true};
}

constexpr std::optional<TensorType> tensor_type(uint32_t id) {
  if (id == kNoGgufId) return std::nullopt;
  if (const auto t = dtype_from_gguf(id)) return tensor_type(*t);
  for (const auto& t : kListedTypes)
    if (t.id == id) return t;
  return std::nullopt;
}

constexpr std::optional<TensorType> tensor_type(std::string_view name) {
  for (const auto& t : kDTypes)
    if (t.name == name) return tensor_type(t.dtype);
  for (const auto& t : kListedTypes)
    if (t.name == name) return t;
  return std::nullopt;
}

}  // namespace pyflow
