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

  // Unmaps the pages of a range; reading them again maps them again. For weights that have been
  // repacked, so that they are not held twice. Any thread may call it, on any range (clipped to the
  // file), at any time.
  //
  // The page that a range starts in is unmapped, the page that it ends in only at the end of the
  // file: consecutive ranges fault each page once. A fault maps the whole folio of the page touched
  // (up to 2 MB, Linux 6.18), and so maps pages again that were released before it: the 2 MB before
  // the range are unmapped too. A folio that reaches past the range stays mapped there until the
  // next release or release_all().
  void release(uint64_t offset, uint64_t nbytes) const;
  // Unmaps every page. Call it once the last range has been read.
  void release_all() const { release(0, size_); }

  // Tells the system that the file will be read from front to back: it reads further ahead.
  void advise_sequential() const;

 private:
  std::string path_, label_;
  uint8_t* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace pyflow
