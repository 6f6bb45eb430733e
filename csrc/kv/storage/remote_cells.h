// Keys and values of one layer that lie in another memory than the host's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "kernels/table.h"
#include "kv/runs.h"

namespace pyflow::kv {

class RemoteCells {
 public:
  virtual ~RemoteCells() = default;
  // Copies cells, bit for bit, in this order.
  virtual void copy(std::span<const CellMove> moves) = 0;
  // Reads or writes cells one after the other, each as Storage::read() gives it.
  virtual void read(std::span<const int32_t> slots, uint8_t* out) const = 0;
  virtual void write(std::span<const int32_t> slots, const uint8_t* in) = 0;
  // Calls edit(view, slot) for each cell with its keys in the host's memory, where it may change
  // them; values are not there.
  using Edit = std::function<void(const KvView& view, int32_t slot)>;
  virtual void edit_keys(std::span<const int32_t> slots, const Edit& edit) = 0;
};

}  // namespace pyflow::kv
