#include "files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string_view>
#include <system_error>

#include "core/errors.h"
#include "core/message.h"

namespace pyflow {
namespace {

static_assert(sizeof(size_t) == 8,
              "checkpoints are mapped whole: a 64-bit address space is needed");

constexpr uint64_t kLargestFolio = uint64_t{2} << 20;  // one page-table entry of a huge page

// Owns a descriptor until the mapping has taken its place.
struct Descriptor {
  int fd;
  ~Descriptor() { close(fd); }
};

[[noreturn]] void fail_open(const std::string& label, int error) {
  if (error == ENOENT || error == ENOTDIR)
    throw FormatError(label + ": no such file; check the path, or name a model of 'pyflow list'");
  const std::string what = label + ": cannot be opened: " + std::generic_category().message(error);
  if (error == EMFILE || error == ENFILE || error == ENOMEM)
    throw ResourceError(what + "; close other files or programs");
  throw FormatError(what + "; check the path and its permissions");
}

void require_regular(const std::string& label, const struct stat& st) {
  if (S_ISREG(st.st_mode)) return;
  if (S_ISDIR(st.st_mode))
    throw FormatError(label + ": expected a file, found a directory; name the file inside it");
  const char* kind = S_ISFIFO(st.st_mode)   ? "a pipe"
                     : S_ISSOCK(st.st_mode) ? "a socket"
                                            : "a device";
  throw FormatError(label + ": expected a regular file, found " + kind +
                    "; a checkpoint is mapped into memory: save it to a file first");
}

}  // namespace

MappedFile::MappedFile(const std::string& path) : path_(path), label_(printable(path, 4096)) {
  if (path.find('\0') != std::string::npos)
    throw FormatError(label_ + ": a path cannot hold a zero byte; check the path");
  // Looked at before it is opened, since opening some devices acts on them, and after, since the
  // name may have come to mean another file. O_NONBLOCK: a pipe put there in between must not make
  // us wait.
  struct stat st {};
  if (stat(path.c_str(), &st) != 0) fail_open(label_, errno);
  require_regular(label_, st);
  const Descriptor file{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY)};
  if (file.fd < 0 || fstat(file.fd, &st) != 0) fail_open(label_, errno);
  require_regular(label_, st);
  if (st.st_size == 0)
    throw FormatError(label_ + ": the file is empty (0 bytes); download it again");
  size_ = static_cast<uint64_t>(st.st_size);
  void* p = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, file.fd, 0);
  if (p == MAP_FAILED) {
    const std::string what = label_ + ": " + grouped(size_) +
                             " bytes cannot be mapped: " + std::generic_category().message(errno);
    if (errno == ENOMEM || errno == EAGAIN)
      throw ResourceError(what + "; raise the limit on address space (ulimit -v)");
    throw FormatError(what + "; copy the file to a local disk");
  }
  data_ = static_cast<uint8_t*>(p);
}

MappedFile::~MappedFile() { munmap(data_, size_); }

void MappedFile::release(uint64_t offset, uint64_t nbytes) const {
  static const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  if (offset >= size_) return;
  const uint64_t begin = (offset - std::min(offset, kLargestFolio)) / page * page;
  // The system rounds an end up to a whole page, which is what the file's last page wants.
  const uint64_t end = nbytes >= size_ - offset ? size_ : (offset + nbytes) / page * page;
  if (end > begin) madvise(data_ + begin, end - begin, MADV_DONTNEED);
}

void MappedFile::advise_sequential() const { madvise(data_, size_, MADV_SEQUENTIAL); }

}  // namespace pyflow
