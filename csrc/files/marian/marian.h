// The .bin of Marian (marian-nmt.github.io, src/common/binary.cpp), version 1.
//
//   head     version: u64, number of tensors: u64
//   records  per tensor: bytes of its name, type, rank, bytes of its data: u64 each
//   names    with zeros at their ends, one after another; then shapes: i32; then the bytes of
//            the padding: u64, and it; then data
//
// Types: 0x404 F32, 0x402 F16, 0x101 bytes, 0x4101 int8 codes for integer products. Behind these
// lies one F32 that divides them; and but for embeddings, the rows of such a matrix are its outputs,
// whereas its shape, like other matrices, says (in, out).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "files/checkpoint.h"

namespace pyflow {

class MarianFile : public Checkpoint {
 public:
  static constexpr std::string_view kConfig = "special:model.yml";

  // Whether a file that starts like this is one, whole or not.
  static bool matches(std::string_view head);
  // FormatError: the file breaks the format.
  static std::shared_ptr<MarianFile> open(const std::string& path);

  std::string_view format() const override { return "Marian"; }
  // The configuration, as YAML.
  std::vector<MetadataEntry> metadata() const override { return metadata_; }

 private:
  explicit MarianFile(std::shared_ptr<const MappedFile> file);

  std::vector<MetadataEntry> metadata_;
};

}  // namespace pyflow
