// MXFP4 (quant/formats/block/mxfp4.h) as safetensors files of gpt-oss have it, two tensors for one:
//
//   NAME_blocks  U8 (.., n, 16)   n blocks of a row; weight 2i of a block is the low nibble of byte
//                                 i, weight 2i + 1 the high one
//   NAME_scales  U8 (.., n)       the e of each block
//
// Here NAME_blocks is MXFP4 (.., 32 n), and NAME_scales is not listed. Blocks are put together when
// they are read: only bytes move.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "files/checkpoint.h"

namespace pyflow {

class PairedCheckpoint : public Checkpoint {
 public:
  // The checkpoint with its pairs joined; itself if it has none.
  static std::shared_ptr<Checkpoint> join(std::shared_ptr<Checkpoint> of);

  std::string_view format() const override { return of_->format(); }
  std::vector<MetadataEntry> metadata() const override { return of_->metadata(); }
  std::string hindrance(const TensorRow& t) const override;
  Contents contents(const TensorRow& t) const override;
  std::vector<std::string> notes() const override { return of_->notes(); }

 private:
  PairedCheckpoint(std::shared_ptr<const Checkpoint> of, std::vector<TensorRow> table);

  std::shared_ptr<const Checkpoint> of_;
};

}  // namespace pyflow
