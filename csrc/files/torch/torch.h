// What torch.save writes. Since version 1.6 a zip archive:
//
//   <name>/data.pkl      a pickle of what was saved; storages by key
//   <name>/data/<key>    the bytes of a storage
//   <name>/byteorder     "little", where it is there
//
// before that (and on request still) a stream:
//
//   pickles of           a magic number, the version 1001, what the machine is like,
//                        what was saved (storages by key), the list of keys
//   for each key         number of elements: u64, the bytes of the storage
//
// Pickles are read by pickle.h, which runs nothing of them. Tensors are views into storages:
// several may share one, and their strides may be any.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "files/checkpoint.h"
#include "files/torch/pickle.h"

namespace pyflow {

// Unpacks a deflated stream of `packed` bytes into exactly nbytes; null when it is broken or of
// another size. Empty where there is nothing to unpack with. Archives of torch.save are stored:
// this is for those that somebody has packed again, so that Python's zlib will do.
using Inflate = std::function<std::shared_ptr<const uint8_t>(const uint8_t* data, uint64_t packed,
                                                             uint64_t nbytes)>;

struct TorchStorage {
  uint64_t offset = 0, nbytes = 0;  // in the file, and once unpacked
  uint64_t packed = 0;              // bytes in the file when it is deflated
  bool deflated = false;
  bool has_crc = false;
  uint32_t crc = 0;
};

class TorchFile : public Checkpoint {
 public:
  // FormatError: the file breaks its format, or its pickle asks for more than what rebuilds
  // tensors. UnsupportedError: big-endian, encrypted, or deflated where `inflate` is empty.
  static std::shared_ptr<TorchFile> open(const std::string& path, const Inflate& inflate);
  // The globals that the pickles of a file ask for, also of a file that is refused; `error` is why.
  struct Inspection {
    std::vector<PickleGlobal> globals;
    std::string error;
  };
  static Inspection inspect(const std::string& path, const Inflate& inflate);

  std::string_view format() const override { return zipped_ ? "PyTorch zip" : "PyTorch stream"; }
  // What the pickle holds besides tensors.
  std::vector<MetadataEntry> metadata() const override { return metadata_; }
  // In the order in which the pickle asks for them.
  const std::vector<PickleGlobal>& globals() const { return globals_; }

  std::string hindrance(const TensorRow& t) const override;
  // FormatError when a storage is not what its checksum says; looked at once per storage.
  Contents contents(const TensorRow& t) const override;

 private:
  TorchFile(std::shared_ptr<const MappedFile> file, Inflate inflate);
  void read(std::vector<PickleGlobal>& globals);
  void read_zip_archive(std::vector<PickleGlobal>& globals);
  void read_stream(std::vector<PickleGlobal>& globals);
  // Fills table and metadata; the storage of a PickleStorage is storages_[numbers[i]].
  void build(const Pickle& pickle, const Cursor& in, const std::vector<uint32_t>& numbers);
  std::shared_ptr<const uint8_t> unpacked(const TorchStorage& s) const;
  void check_crc(uint32_t number, const uint8_t* data) const;

  bool zipped_ = true;
  Inflate inflate_;
  std::vector<TorchStorage> storages_;
  std::vector<uint32_t> storage_of_;  // of each line of the table
  std::vector<uint64_t> first_byte_;  // of each line, in its storage
  std::vector<MetadataEntry> metadata_;
  std::vector<PickleGlobal> globals_;
  mutable std::mutex mutex_;
  mutable std::vector<std::weak_ptr<const uint8_t>> cache_;  // unpacked storages that are in use
  mutable std::vector<uint8_t> checked_;                     // storages whose checksum was right
};

// Names for the tensors of a pickle and values for the rest, by their paths: "optimizer.lr". What a
// `state_dict` or `model` at the top holds goes without that prefix.
struct TorchContents {
  std::vector<std::pair<std::string, uint32_t>> tensors;  // name, in Pickle::tensors
  std::vector<MetadataEntry> entries;
};
TorchContents collect(const Pickle& pickle, Cursor& in);

}  // namespace pyflow
