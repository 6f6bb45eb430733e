#include "core/buffer.h"

#include <sys/mman.h>

#include <string>

#include "core/errors.h"

namespace pyflow {

Buffer::Buffer(size_t nbytes, const char* what) : size_(nbytes) {
  if (nbytes == 0) return;
  void* p = mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) {
    size_ = 0;
    throw ResourceError(std::string(what) + ": the system refused " + std::to_string(nbytes) +
                        " bytes of memory; close other programs or choose a smaller context");
  }
  // Fewer page-table walks over weights that are read end to end; a refusal costs nothing.
  constexpr size_t kHugePage = size_t{2} << 20;
  if (nbytes >= kHugePage) madvise(p, nbytes, MADV_HUGEPAGE);
  data_ = static_cast<uint8_t*>(p);
}

Buffer::~Buffer() {
  if (data_) munmap(data_, size_);
}

}  // namespace pyflow
