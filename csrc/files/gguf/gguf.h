// GGUF, versions 2 and 3, little-endian (github.com/ggml-org/ggml, docs/gguf.md).
//
//   offset  0  "GGUF"             u8[4]
//           4  version            u32
//           8  tensor count       u64
//          16  metadata count     u64
//          24  metadata           (key: string, type: u32, value)...
//              tensor table       (name: string, n_dims: u32, dims: u64[n_dims] row length first,
//                                  type: u32, offset: u64 from the start of the data)...
//              zeros up to the next multiple of general.alignment (32 unless given)
//              data               each tensor at a multiple of the alignment
//
//   string = length: u64, bytes      array = type: u32, count: u64, values
//
// Everything here is checked when the file is opened (contract C3): what an open GgufFile holds
// lies inside the file, does not overlap and has the size that its shape says.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "files/checkpoint.h"
#include "files/gguf/types.h"

namespace pyflow {

// The alternative's index is the GGUF type number. Strings lie in the file: bytes, as a rule UTF-8.
using GgufValue = std::variant<uint8_t, int8_t, uint16_t, int16_t, uint32_t, int32_t, float, bool,
                               std::string_view, GgufArray, uint64_t, int64_t, double>;
static_assert(std::variant_size_v<GgufValue> == kGgufTypeCount);

struct GgufEntry {
  std::string key;
  GgufValue value;
  std::span<const uint8_t> bytes;  // type and value as they lie in the file
};

class GgufFile : public Checkpoint {
 public:
  // FormatError: the file breaks the format. UnsupportedError: version 1, a version after 3, or
  // big-endian. ResourceError: no memory or descriptors left. Tensors of unsupported types do not
  // stop it.
  static std::shared_ptr<GgufFile> open(const std::string& path);

  std::string_view format() const override { return "GGUF"; }
  uint32_t version() const { return version_; }
  uint32_t alignment() const { return alignment_; }
  uint64_t data_offset() const override { return data_offset_; }
  const MappedFile& file() const { return *files()[0]; }

  // Metadata with their bytes, in the file's order.
  const std::vector<GgufEntry>& entries() const { return entries_; }
  std::vector<MetadataEntry> metadata() const override;

 private:
  explicit GgufFile(std::shared_ptr<const MappedFile> file);

  uint32_t version_ = 0;
  uint32_t alignment_ = 32;
  uint64_t data_offset_ = 0;
  std::vector<GgufEntry> entries_;
};

}  // namespace pyflow
