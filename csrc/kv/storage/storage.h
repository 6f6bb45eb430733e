// The keys and values themselves, laid out as kernels/table.h says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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

  // Of the host's memory. Throws ShapeError for a layer without heads or of too large ones,
  // ResourceError when no memory could hold them.
  static size_t nbytes(const KvConfig& config, std::span<const GroupPlan> groups) {
    return nbytes(config, groups, false);
  }
  // Of the layers that are elsewhere.
  static size_t remote_nbytes(const KvConfig& config, std::span<const GroupPlan> groups) {
    return nbytes(config, groups, true);
  }

  // Without memory if the layer is remote.
  const KvView& view(size_t layer) const { return views_[layer]; }
  // Null if the layer is in the host's memory.
  RemoteCells* remote(size_t layer) const { return remote_[layer].get(); }
  // Bytes of the keys and values of a cell of a layer.
  size_t cell_nbytes(size_t layer) const;
  size_t key_nbytes(size_t layer) const;
  // Copies cells of a layer, bit for bit, in this order.
  void copy(size_t layer, std::span<const CellMove> moves);
  // Reads or writes cells of a layer, one after the other: each has its keys head by head, then its
  // values, cell_nbytes() in all.
  void read(size_t layer, std::span<const int32_t> slots, uint8_t* out) const;
  void write(size_t layer, std::span<const int32_t> slots, const uint8_t* in);
  // Calls edit(view, slot) for each cell, which may change its keys.
  void edit_keys(size_t layer, std::span<const int32_t> slots, const RemoteCells::Edit& edit);

 private:
  static size_t nbytes(const KvConfig& config, std::span<const GroupPlan> groups, bool remote);

  Buffer buffer_;
  std::vector<KvView> views_;
  std::vector<std::unique_ptr<RemoteCells>> remote_;  // by layer
};

}  // namespace pyflow::kv
