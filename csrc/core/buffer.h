// Anonymous, zeroed, 64-byte aligned memory; on huge pages where the kernel grants them, and on
// chosen memory nodes where asked for.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

namespace pyflow {

class Buffer {
 public:
  Buffer() = default;
  // Throws ResourceError, naming `what`, when the memory cannot be had. Less is needed with a
  // smaller `cause`: a context, a model.
  Buffer(size_t nbytes, const char* what, const char* cause = "context");
  ~Buffer();
  Buffer(Buffer&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Buffer& operator=(Buffer&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

  // Where the pages of bytes [begin, end) come from that nobody has touched yet: from a memory node
  // as long as it has some, or from several in turn. A page on the border belongs to the range that
  // begins there. Returns 0, or the errno of a refusal, which leaves them to come from the node of
  // the thread that touches them first.
  int prefer_node(size_t begin, size_t end, int node) const;
  int interleave(std::span<const int> nodes) const;

 private:
  uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace pyflow
