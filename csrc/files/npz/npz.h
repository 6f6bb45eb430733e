// An archive of numpy's arrays, as numpy.savez and Marian write it (numpy.lib.format).
//
//   zip      one stored member NAME.npy for each array
//   member   "\x93NUMPY", version: u8[2], bytes of the text: u16 (u32 from version 2 on), the
//            text, which is a dict of Python with descr, fortran_order and shape, then the values
//
// The text is read by a parser of ours for just these keys. Objects, which would be pickles, are
// refused.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "files/checkpoint.h"

namespace pyflow {

class NpzFile : public Checkpoint {
 public:
  // Whether a zip archive that starts like this begins with an array.
  static bool matches(std::string_view head);
  // FormatError: the file breaks the format. UnsupportedError: deflated members, or arrays that
  // hold other things than little-endian numbers in C order.
  static std::shared_ptr<NpzFile> open(const std::string& path);

  std::string_view format() const override { return "npz"; }
  // The configuration of a model of Marian, as YAML, if there is one.
  std::vector<MetadataEntry> metadata() const override { return metadata_; }

 private:
  explicit NpzFile(std::shared_ptr<const MappedFile> file);

  std::vector<MetadataEntry> metadata_;
};

}  // namespace pyflow
