// The keys and values themselves, laid out as kernels/table.h says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "kernels/table.h"
#include "kv/config.h"

namespace pyflow::kv {

class Storage {
 public:
  // Throws ResourceError when the memory is refused.
  Storage(const KvConfig& config, std::span<const GroupPlan> groups);

  // Throws ShapeError or UnsupportedError for a layer that the cache type cannot hold,
  // ResourceError when no memory could.
  static size_t nbytes(const KvConfig& config, std::span<const GroupPlan> groups);

  const KvView& view(size_t layer) const { return views_[layer]; }
  // Copies a cell of a layer, bit for bit.
  void copy(size_t layer, int32_t from, int32_t to);

 private:
  Buffer buffer_;
  std::vector<KvView> views_;
};

}  // namespace pyflow::kv
