// The type numbers of GGUF: metadata values, and tensors in formats that this build only knows by
// name.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

#include "core/dtype.h"

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

// How a tensor of some type lies in the file; `supported` when this build can compute with it.
struct TensorType {
  uint32_t id;
  std::string_view name;
  uint32_t block;        // weights per block
  uint32_t block_bytes;  // bytes per block
  bool supported = false;
};

// Known by name and size, so that files which hold them can be listed and checked. Formats that
// quant/formats.def adds later take precedence; their lines here are then of no use.
inline constexpr std::array kListedTypes = {
    TensorType{9, "Q8_1", 32, 40},      TensorType{15, "Q8_K", 256, 292},
    TensorType{16, "IQ2_XXS", 256, 66}, TensorType{17, "IQ2_XS", 256, 74},
    TensorType{18, "IQ3_XXS", 256, 98}, TensorType{19, "IQ1_S", 256, 50},
    TensorType{21, "IQ3_S", 256, 110},  TensorType{22, "IQ2_S", 256, 82},
    TensorType{24, "I8", 1, 1},         TensorType{25, "I16", 1, 2},
    TensorType{26, "I32", 1, 4},        TensorType{27, "I64", 1, 8},
    TensorType{28, "F64", 1, 8},        TensorType{29, "IQ1_M", 256, 56},
    TensorType{34, "TQ1_0", 256, 54},   TensorType{35, "TQ2_0", 256, 66},
    TensorType{39, "MXFP4", 32, 17},    TensorType{40, "NVFP4", 64, 36},
    TensorType{41, "Q1_0", 128, 18},
};

constexpr std::optional<TensorType> tensor_type(uint32_t id) {
  if (const auto t = dtype_from_gguf(id))
    return TensorType{id, info(*t).name, info(*t).block, info(*t).block_bytes, true};
  for (const auto& t : kListedTypes)
    if (t.id == id) return t;
  return std::nullopt;
}

}  // namespace pyflow
