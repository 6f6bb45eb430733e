// What a file of weights holds, whatever its format: a table of tensors, each checked against the
// file that it lies in. One class per format derives from this and fills the table.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/tensor.h"
#include "files/mapped_file.h"
#include "files/metadata.h"
#include "files/tensor_type.h"

namespace pyflow {

// One tensor, also of a type that this build cannot compute with.
struct TensorRow {
  std::string name;
  std::string type_name;         // "Q4_K", or "type 77" when a GGUF number is unknown
  uint32_t type_id = 0;          // in GGUF; kNoGgufId where it has none
  uint32_t block_bytes = 0;      // bytes per block of weights, 0 when unknown
  bool supported = false;        // this build can compute with the type
  std::vector<int64_t> shape;    // outermost first: {rows, row length}
  std::vector<int64_t> strides;  // in elements, one per dimension; empty: row after row
  uint32_t file = 0;             // in Checkpoint::files()
  uint64_t offset = 0;           // of the first byte in the file
  uint64_t nbytes = 0;           // of the values, row after row; 0 when the type is unknown
  uint64_t span = 0;             // bytes from the first element to the last: nbytes, or by strides
  // Of int8 codes: where the numbers that divide them lie in the file, F32, 1 or one for each row.
  uint64_t divisors = 0;
  uint32_t n_divisors = 0;

  // Of a matrix that other tensors make up (files/joined/joined.h).
  std::shared_ptr<const MadeRows> made = nullptr;

  void set_type(const TensorType& type);
};

// Bytes that stay while `owner` does, or, when it is null, while the checkpoint does.
struct Contents {
  const uint8_t* data = nullptr;
  uint64_t nbytes = 0;
  std::shared_ptr<const void> owner;
};

class Checkpoint {
 public:
  virtual ~Checkpoint() = default;
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  virtual std::string_view format() const = 0;  // "GGUF", "safetensors", ...
  // In the file's order, built anew. Arrays in it stay valid while the checkpoint lives.
  virtual std::vector<MetadataEntry> metadata() const = 0;
  // The path that was opened, as it may be shown.
  const std::string& label() const { return label_; }
  const std::vector<std::shared_ptr<const MappedFile>>& files() const { return files_; }
  uint64_t nbytes() const;               // of all files
  virtual uint64_t data_offset() const;  // of the first tensor in the first file, or the file's end

  // In the file's order, each name once.
  const std::vector<TensorRow>& table() const { return table_; }
  // The tensors of `table` that can be used where they lie: of a supported type, row after row, as
  // plain bytes of the file. Whoever must not overlook one (all weights used, or refuse) compares
  // the sizes of the two.
  const std::vector<TensorRecord>& tensors() const { return tensors_; }

  // Null when there is no such tensor; UnsupportedError, naming it and why, when it cannot be used
  // where it lies.
  const TensorRecord* find(std::string_view name) const;
  // The line of the table, or null.
  const TensorRow* row_named(std::string_view name) const;

  // Why a tensor of a supported type cannot be used where it lies: "" when it can.
  virtual std::string hindrance(const TensorRow& t) const;

  // The span of a line of the table, for which the size of the type must be known. Where the format
  // has checksums they are compared, once, which reads the data.
  virtual Contents contents(const TensorRow& t) const;
  // The bytes of files that make up a tensor.
  std::vector<std::span<const uint8_t>> parts(const TensorRow& t) const;
  // What its files say differently, or twice, without harm; a sentence each.
  virtual std::vector<std::string> notes() const { return {}; }
  // Unmaps the pages of a record of `tensors`, or those of all files; see MappedFile.
  void release(const TensorRecord& r) const;
  void release(std::span<const uint8_t> bytes) const;
  void release_all() const;

 protected:
  explicit Checkpoint(std::string label) : label_(std::move(label)) {}
  // Opens a file that belongs to this checkpoint; returns its number.
  uint32_t add_file(std::shared_ptr<const MappedFile> file);
  void set_table(std::vector<TensorRow> table);

 private:
  std::string label_;
  std::vector<std::shared_ptr<const MappedFile>> files_;
  std::vector<TensorRow> table_;
  std::vector<TensorRecord> tensors_;
  std::vector<uint32_t> by_name_;  // lines of table_, sorted by name
  std::vector<uint32_t> record_;   // table_ line -> tensors_ index, where it has one
};

// The number of elements of a shape. False when there are 2^63 or more.
bool count_elements(const std::vector<int64_t>& shape, uint64_t& n);

}  // namespace pyflow
