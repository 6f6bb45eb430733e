// A checkpoint some of whose tensors make up others (core/tensor.h, MadeRows). These are listed, and
// their parts are not.
#pragma once

#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "files/checkpoint.h"

namespace pyflow {

class JoinedCheckpoint : public Checkpoint {
 public:
  // A tensor with `made` set, in place of the first of its parts in the file. The parts stay mapped
  // as long as the checkpoint lives.
  struct Join {
    TensorRow row;
    std::vector<std::string> parts;
  };
  // hidden: tensors that are not listed either. FormatError: two tensors get one name.
  JoinedCheckpoint(std::shared_ptr<const Checkpoint> of, std::vector<Join> joins,
                   const std::vector<std::string>& hidden);

  std::string_view format() const override { return of_->format(); }
  std::vector<MetadataEntry> metadata() const override { return of_->metadata(); }
  std::string hindrance(const TensorRow& t) const override;
  // Of a made tensor, all rows; those of the last one that was asked for are kept.
  Contents contents(const TensorRow& t) const override;
  std::vector<std::string> notes() const override { return of_->notes(); }

 private:
  std::shared_ptr<const Checkpoint> of_;
  mutable std::mutex lock_;
  mutable const MadeRows* last_ = nullptr;
  mutable std::shared_ptr<const std::vector<uint8_t>> bytes_;
};

}  // namespace pyflow
