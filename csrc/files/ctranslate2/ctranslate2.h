// The model.bin of CTranslate2 (github.com/OpenNMT/CTranslate2, specs/model_spec.py), versions 4 to
// 6 of its layout.
//
//   head       version: u32, spec: text, revision: u32
//   variables  their number: u32; of each name: text, rank: u8, dims: u32[rank], type: u8,
//              bytes: u32, data
//   aliases    their number: u32; of each the name and that of the variable: texts
//   text       bytes with the zero at the end: u16, then these
//
// Types: 0 F32, 1 I8, 2 I16, 3 I32, 4 F16, 5 BF16. Data is not aligned. Variables of rank 0 are
// settings: they become metadata. An int8 matrix NAME has divisors NAME_scale, one or one for each
// row; a weight is code / divisor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "files/checkpoint.h"

namespace pyflow {

class CTranslate2File : public Checkpoint {
 public:
  // Whether a file that starts like this is one, whole or not.
  static bool matches(std::string_view head);
  // FormatError: the file breaks the format. UnsupportedError: another version of it.
  static std::shared_ptr<CTranslate2File> open(const std::string& path);

  std::string_view format() const override { return "CTranslate2"; }
  // "spec", "revision", settings by their names, and "alias/NAME" for another name of a variable.
  std::vector<MetadataEntry> metadata() const override { return metadata_; }

 private:
  explicit CTranslate2File(std::shared_ptr<const MappedFile> file);

  std::vector<MetadataEntry> metadata_;
};

}  // namespace pyflow
