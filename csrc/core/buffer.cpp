#include "core/buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "core/errors.h"

namespace pyflow {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t pages(size_t nbytes) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return (nbytes + page - 1) / page * page;
}

}  // namespace

Buffer::Buffer(size_t nbytes, const char* what) : size_(nbytes) {
  if (nbytes == 0) return;
  // Where a huge page is to fit, the memory starts on its border.
  const size_t spare = nbytes >= kHugePage ? kHugePage : 0;
  void* p = nbytes > SIZE_MAX - spare ? MAP_FAILED
                                      : mmap(nullptr, nbytes + spare, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    size_ = 0;
    throw ResourceError(std::string(what) + ": the system refused " + std::to_string(nbytes) +
                        " bytes of memory; close other programs or choose a smaller context");
  }
  data_ = static_cast<uint8_t*>(p);
  if (spare == 0) return;
  const auto address = reinterpret_cast<uintptr_t>(p);
  const size_t before = (kHugePage - address % kHugePage) % kHugePage, used = pages(nbytes);
  if (before) munmap(p, before);
  data_ += before;
  if (before + used < pages(nbytes + spare))
    munmap(data_ + used, pages(nbytes + spare) - before - used);
  // Fewer page-table walks over weights that are read end to end; a refusal costs nothing.
  madvise(data_, nbytes, MADV_HUGEPAGE);
}

Buffer::~Buffer() {
  if (data_) munmap(data_, size_);
}

}  // namespace pyflow
