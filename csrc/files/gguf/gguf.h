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
  uint64_t data_offset() const { return data_offset_; }
  const MappedFile& file() const { return *files()[0]; }

  // In the file's order.
  const std::vector<GgufEntry>& metadata() const { return metadata_; }

 private:
  explicit GgufFile(std::shared_ptr<const MappedFile> file);

  uint32_t version_ = 0;
  uint32_t alignment_ = 32;
  uint64_t data_offset_ = 0;
  std::vector<GgufEntry> metadata_;
};

}  // namespace pyflow
