// Cells of one layer in a device's memory, laid out as those of the host are.
#pragma once

#include <memory>
#include <span>

#include "device/ops.h"
#include "kv/config.h"
#include "kv/storage/remote_cells.h"

namespace pyflow::kv {

class DeviceStore final : public RemoteCells {
 public:
  // Commands go by this queue, after those of the steps before. Throws ResourceError.
  DeviceStore(const LayerKv& layer, CacheType type, int64_t n_cells, device::Ops& ops,
              device::Queue& queue);

  const device::DeviceCells& cells() const { return cells_; }
  void copy(std::span<const CellMove> moves) override;
  void read(std::span<const int32_t> slots, uint8_t* out) const override;
  void write(std::span<const int32_t> slots, const uint8_t* in) override;
  void edit_keys(std::span<const int32_t> slots, const Edit& edit) override;

 private:
  // Calls work(index, view of a block of sixteen cells in the host's memory, slot there) for each
  // of the slots; the view has keys alone. changes: the blocks go back to the device.
  template <class Work>
  void each_block(std::span<const int32_t> slots, bool changes, Work&& work) const;

  KvView view_;  // without memory
  std::unique_ptr<device::DeviceBuffer> k_, v_;
  device::DeviceCells cells_;
  device::Ops& ops_;
  device::Queue& queue_;
};

}  // namespace pyflow::kv
