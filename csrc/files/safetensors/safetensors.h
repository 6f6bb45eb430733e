// safetensors (github.com/huggingface/safetensors).
//
//   offset  0  n                  u64, bytes of the header, at most 100,000,000
//           8  header             JSON, an object, spaces may follow:
//                                   name: {"dtype": string, "shape": [...], "data_offsets": [a, b]}
//                                   "__metadata__": {key: string, ...}
//       8 + n  data               tensor bytes from a to b, row after row
//
// Tensors cover the data without gap or overlap, as the format wants it: whatever is in the file is
// listed, and no byte means two things.
//
// The format has no types of blocks (quant/formats.def). To other programs a tensor of such a type
// is U8, its last dimension the bytes of a row: blocks as in GGUF. What it is stands in metadata:
//
//   "pyflow.version": "1"
//   "pyflow.tensors": JSON again, name: {"dtype": "Q4_K", "shape": [..., weights of a row]}
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/checkpoint.h"

namespace pyflow {

class SafetensorsFile : public Checkpoint {
 public:
  // FormatError: the file breaks the format. ResourceError: no memory or descriptors left.
  static std::shared_ptr<SafetensorsFile> open(const std::string& path);

  std::string_view format() const override { return "safetensors"; }
  // "__metadata__", in the file's order.
  std::vector<MetadataEntry> metadata() const override;

 private:
  explicit SafetensorsFile(std::shared_ptr<const MappedFile> file);

  std::vector<std::pair<std::string, std::string>> metadata_;
};

}  // namespace pyflow
