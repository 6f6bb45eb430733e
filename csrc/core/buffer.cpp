#include "core/buffer.h"

#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <string>

#include "core/errors.h"
#include "core/message.h"

namespace pyflow {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t page_size() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

size_t pages(size_t nbytes) { return (nbytes + page_size() - 1) / page_size() * page_size(); }

// mbind(2), for which the C library has no function.
int bind_pages(uint8_t* begin, size_t nbytes, int policy, std::span<const int> nodes) {
  constexpr size_t kNodes = 1024, kBits = 8 * sizeof(unsigned long);  // no kernel has more
  std::array<unsigned long, kNodes / kBits> mask{};
  for (const int node : nodes) {
    if (node < 0 || static_cast<size_t>(node) >= kNodes) return EINVAL;
    mask[static_cast<size_t>(node) / kBits] |= 1UL << (static_cast<size_t>(node) % kBits);
  }
  // The system call counts one bit less than it is told.
  return syscall(SYS_mbind, begin, nbytes, policy, mask.data(), kNodes + 1, 0) == 0 ? 0 : errno;
}

// What a user can do where mmap refused memory.
std::string advice(const char* cause) {
  const auto is_limited = [](auto resource) {
    rlimit limit{};
    return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  };
  const std::string smaller = std::string(" or choose a smaller ") + cause;
  if (is_limited(RLIMIT_AS)) return "raise the limit on address space (ulimit -v)" + smaller;
  if (is_limited(RLIMIT_DATA)) return "raise the limit on data (ulimit -d)" + smaller;
  return "close other programs" + smaller;
}

}  // namespace

Buffer::Buffer(size_t nbytes, const char* what, const char* cause) : size_(nbytes) {
  if (nbytes == 0) return;
  // Where a huge page is to fit, the memory starts on its border.
  const size_t spare = nbytes >= kHugePage ? kHugePage : 0;
  void* p = nbytes > SIZE_MAX - spare ? MAP_FAILED
                                      : mmap(nullptr, nbytes + spare, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    size_ = 0;
    throw ResourceError(std::string(what) + ": the system refused " + grouped(nbytes) +
                        " bytes of memory; " + advice(cause));
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

int Buffer::prefer_node(size_t begin, size_t end, int node) const {
  begin = begin / page_size() * page_size();
  end = end == size_ ? pages(end) : end / page_size() * page_size();
  // Not MPOL_BIND: a node that is full would end the process while others have memory.
  return begin >= end ? 0
                      : bind_pages(data_ + begin, end - begin, MPOL_PREFERRED, std::array{node});
}

int Buffer::interleave(std::span<const int> nodes) const {
  return size_ == 0 ? 0 : bind_pages(data_, pages(size_), MPOL_INTERLEAVE, nodes);
}

}  // namespace pyflow
