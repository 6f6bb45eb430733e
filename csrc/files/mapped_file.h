// A whole file as read-only memory.
//
// Nothing can make this safe against somebody who shortens the file while it is mapped: touching a
// page that is no longer there raises SIGBUS, and whether a page is there cannot be asked in
// advance. Nor do its bytes stay what they were when somebody rewrites the file in place. What is
// checked once and used later is therefore copied (names, lengths, offsets), so such a file can
// give wrong values or SIGBUS but no access outside the map. Programs that replace a file by
// renaming, as `pyflow pull` does, are safe: the map keeps the old one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace pyflow {

class MappedFile {
 public:
  // Maps a regular, non-empty file. FormatError: missing, unreadable, a directory, a pipe or
  // another special file (which are refused without waiting for a writer), empty. ResourceError: no
  // descriptors or address space left.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }
  const std::string& path() const { return path_; }
  // The path as it may be shown: see printable().
  const std::string& label() const { return label_; }

  // Gives the pages of a range back to the system; reading them again fetches them from the file.
  // For weights that have been repacked, so that they are not held twice. Any thread may call it,
  // on any range (clipped to the file), at any time.
  //
  // The page that a range starts in goes, the page that it ends in stays unless the file ends
  // there: of ranges released one after the other each page is fetched once. A fault maps up to 16
  // pages around the one touched, so after releasing a tensor in small pieces release the whole of
  // it once more.
  void release(uint64_t offset, uint64_t nbytes) const;

  // Tells the system that the file will be read from front to back: it reads further ahead.
  void advise_sequential() const;

 private:
  std::string path_, label_;
  uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace pyflow
