// A checkpoint in several files that are opened as one.
//
// Model hubs cut large models into shards and say in <name>.index.json where each tensor lies:
//
//   {"metadata": {...}, "weight_map": {tensor name: file name, ...}}
//
// llama.cpp cuts GGUF files into <name>-00001-of-0000n.gguf. The first has the metadata, all have
// split.no, split.count and split.tensors.count.
//
// Where the index is lost, <name>-0000i-of-0000n.safetensors say by their names what belongs together.
//
// File names in an index are plain names of files in the index's own folder; anything else is
// refused, so that an index from somewhere cannot make us read other files.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "files/checkpoint.h"
#include "files/gguf/gguf.h"

namespace pyflow {

using OpenPart = std::function<std::shared_ptr<const Checkpoint>(const std::string& path)>;

// The number of files that a GGUF file is one of: 1, unless it says otherwise.
uint64_t split_count(const GgufFile& file);

class ShardedCheckpoint : public Checkpoint {
 public:
  // FormatError: the index breaks its format, or two parts have different tensors of one name.
  // Besides, whatever opening a part throws. Tensors that are not where the index says are a note.
  static std::shared_ptr<ShardedCheckpoint> open_index(const std::string& path,
                                                       const OpenPart& open_part);
  // All parts, given the first; FormatError when they do not belong together.
  static std::shared_ptr<ShardedCheckpoint> open_split(std::shared_ptr<const GgufFile> first);
  // Parts in order; `label` is what was opened. At least one. Of tensors that are the same in two
  // parts the first is kept.
  ShardedCheckpoint(std::string label, std::vector<std::shared_ptr<const Checkpoint>> parts);

  std::string_view format() const override { return parts_[0]->format(); }
  // Those of the first part.
  std::vector<MetadataEntry> metadata() const override { return parts_[0]->metadata(); }

  std::string hindrance(const TensorRow& t) const override;
  Contents contents(const TensorRow& t) const override;
  std::vector<std::string> notes() const override { return notes_; }

 private:
  std::vector<TensorRow> joined();
  bool same(const TensorRow& a, const TensorRow& b, uint64_t& budget) const;
  void compare_with(const std::vector<std::pair<std::string, std::string>>& places,
                    const std::string& folder);
  const Checkpoint& part_of(const TensorRow& t) const { return *parts_[part_of_file_[t.file]]; }
  // The same line in the part's own table.
  const TensorRow& own_line(const TensorRow& t) const;

  std::vector<std::shared_ptr<const Checkpoint>> parts_;
  std::vector<uint32_t> part_of_file_;
  std::vector<std::string> notes_;
};

}  // namespace pyflow
