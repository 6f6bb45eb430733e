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

  // Throws ShapeError for a layer without heads or of too large ones, ResourceError when no memory
  // could hold them.
  static size_t nbytes(const KvConfig& config, std::span<const GroupPlan> groups);

  const KvView& view(size_t layer) const { return views_[layer]; }
  // Bytes of the keys and values of a cell of a layer.
  size_t cell_nbytes(size_t layer) const;
  // Copies a cell of a layer, bit for bit.
  void copy(size_t layer, int32_t from, int32_t to);
  // Reads or writes a cell of a layer: its keys head by head, then its values, cell_nbytes() in all.
  void read(size_t layer, int32_t slot, uint8_t* out) const;
  void write(size_t layer, int32_t slot, const uint8_t* in);

 private:
  Buffer buffer_;
  std::vector<KvView> views_;
};

}  // namespace pyflow::kv
