// Reads a mapped checkpoint from front to back. No byte is touched before it is known to be in the
// file, and every refusal says where it happened.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "files/mapped_file.h"

namespace pyflow {

static_assert(std::endian::native == std::endian::little,
              "checkpoints are read without byte swaps");

inline constexpr std::string_view kAdviseDownload =
    "the file is incomplete or damaged: download it again "
    "(a model of 'pyflow list': 'pyflow pull NAME --force')";
inline constexpr std::string_view kAdviseConvert =
    "the file is damaged or badly converted: download or convert it again";

// Unaligned little-endian load.
template <class T>
T load(const uint8_t* p) {
  T v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Bytes that are read as one piece: a file, or a part of it.
struct Bytes {
  std::string_view label;  // the file, as it may be shown; outlives whoever reads
  const uint8_t* data = nullptr;
  uint64_t size = 0;
  uint64_t base = 0;                // what to add to an offset for that in the file
  std::string_view whole = "file";  // what ends where they end
};

class Cursor {
 public:
  explicit Cursor(const MappedFile& file) : bytes_{file.label(), file.data(), file.size()} {}
  explicit Cursor(const Bytes& bytes) : bytes_(bytes) {}

  // Offsets are from the start of the bytes; errors show them from the start of the file.
  uint64_t pos() const { return pos_; }
  uint64_t size() const { return bytes_.size; }
  uint64_t remaining() const { return bytes_.size - pos_; }
  const uint8_t* data() const { return bytes_.data + pos_; }
  std::string_view label() const { return bytes_.label; }
  // An offset as errors show it.
  uint64_t in_file(uint64_t offset) const { return bytes_.base + offset; }

  // What errors name from here on: "header", "metadata", "tensor"; an entry by its number until its
  // name has been read. Cheap, because a tokenizer's vocabulary passes through here.
  void enter(std::string_view section, uint64_t index, uint64_t count) {
    section_ = section;
    index_ = index;
    count_ = count;
    name_ = {};
  }
  void name(std::string_view name) { name_ = name; }

  // Throws FormatError unless n more bytes are there.
  void require(uint64_t n, std::string_view field) const {
    if (n > remaining()) fail_short(n, field);
  }
  void skip(uint64_t n, std::string_view field) {
    require(n, field);
    pos_ += n;
  }
  template <class T>
  T read(std::string_view field) {
    require(sizeof(T), field);
    const T v = load<T>(data());
    pos_ += sizeof(T);
    return v;
  }
  // A 64-bit length and that many bytes.
  std::string_view read_string(std::string_view field) {
    const auto length = read<uint64_t>(field);
    if (length > remaining()) fail_length(length, field);
    return take(length, field);
  }
  std::string_view take(uint64_t n, std::string_view field) {
    require(n, field);
    const std::string_view s(reinterpret_cast<const char*>(data()), n);
    pos_ += n;
    return s;
  }
  // A 64-bit count of things that take at least min_bytes each: what does not fit in the rest of
  // the file is refused before anything is allocated for it.
  uint64_t read_count(uint64_t min_bytes, std::string_view field);

  // "<file>: <place>: <field> at byte <n>: expected <expected>, found <found>; <advice>"
  std::string describe(uint64_t offset, std::string_view field, std::string_view expected,
                       std::string_view found, std::string_view advice) const;
  [[noreturn]] void fail(uint64_t offset, std::string_view field, std::string_view expected,
                         std::string_view found, std::string_view advice) const;

 private:
  [[noreturn]] void fail_short(uint64_t n, std::string_view field) const;
  [[noreturn]] void fail_length(uint64_t length, std::string_view field) const;

  Bytes bytes_;
  uint64_t pos_ = 0;
  std::string_view section_, name_;
  uint64_t index_ = 0, count_ = 0;
};

}  // namespace pyflow
