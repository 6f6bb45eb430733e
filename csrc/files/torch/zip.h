// Zip archives, as far as checkpoints need them (PKWARE's APPNOTE.TXT 6.3.10).
//
//   members              each a local header (30 bytes, name, extra field), then its bytes
//   central directory    one line of 46 bytes, name, extra field and comment per member
//   zip64 record         56 bytes and its locator of 20: where 16 or 32 bits do not suffice
//   end record           22 bytes and a comment, up to the end of the file
//
// The central directory counts; local headers are read for where the bytes start, and must agree.
// Archives that different readers could read differently are refused: members that overlap, names
// that are there twice, a directory that does not end where the end record starts.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "files/mapped_file.h"

namespace pyflow {

struct ZipMember {
  std::string name;
  bool deflated = false;  // else stored as it is
  uint32_t crc = 0;       // of the bytes once unpacked
  uint64_t packed = 0;    // bytes in the file
  uint64_t nbytes = 0;    // bytes once unpacked
  uint64_t offset = 0;    // of the first byte in the file
};

// Deflate cannot do better (zlib's technical notes: 1032 to 1); more is a lie about the size.
inline constexpr uint64_t kMaxDeflateRatio = 1032;

// All members, in the order of the central directory. FormatError: the archive is broken.
// UnsupportedError: encrypted, in several parts, or packed by another method than deflate.
std::vector<ZipMember> read_zip(const MappedFile& file);

}  // namespace pyflow
