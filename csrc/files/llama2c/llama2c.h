// The .bin files of llama2.c (github.com/karpathy/llama2.c, export.py), versions 0 and 1, all F32.
//
//   version 0   dims: i32[7], then the weights, and tables of angles that nobody needs
//   version 1   "24ka" (0x616b3432 as u32), 1: i32, dims: i32[7], shared: u8, zeros up to 256, the
//   weights
//
//   dims = dim, hidden_dim, n_layers, n_heads, n_kv_heads, vocab_size, seq_len. In version 0 a
//   negative vocab_size says that the head has a matrix of its own, in version 1 shared == 0 does.
//
// There are no names in the file; those here are of the models that it is made from. Version 0 has
// no magic number either: it is known by plausible dims.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "files/checkpoint.h"

namespace pyflow {

class Llama2cFile : public Checkpoint {
 public:
  // Whether a file that starts like this is one, whole or not.
  static bool matches(std::string_view head);
  // FormatError: the file has another size than its dims say. UnsupportedError: version 2 (Q8_0) or
  // later.
  static std::shared_ptr<Llama2cFile> open(const std::string& path);

  std::string_view format() const override { return "llama2.c"; }
  // The dims by their names, and "version".
  std::vector<MetadataEntry> metadata() const override { return metadata_; }

 private:
  explicit Llama2cFile(std::shared_ptr<const MappedFile> file);

  std::vector<MetadataEntry> metadata_;
};

}  // namespace pyflow
