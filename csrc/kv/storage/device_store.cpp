#include "kv/storage/device_store.h"

#include <vector>

#include "kv/storage/cell_layout.h"

namespace pyflow::kv {

DeviceStore::DeviceStore(const LayerKv& layer, CacheType type, int64_t n_cells, device::Ops& ops,
                         device::Queue& queue)
    : view_(layer_view(layer, type, nullptr, nullptr)), ops_(ops), queue_(queue) {
  const auto [keys, values] = layer_nbytes(layer, n_cells, type);
  k_ = ops.device().allocate(keys, "KV cache");
  v_ = ops.device().allocate(values, "KV cache");
  cells_ = {k_.get(), v_.get(), type, view_.n_kv_heads, view_.key_dim, view_.value_dim};
  // As fresh memory of the host: what was never stored is multiplied by nothing, but may be read.
  queue.fill(*k_, 0, keys, 0);
  queue.fill(*v_, 0, values, 0);
}

void DeviceStore::copy(std::span<const CellMove> moves) {
  static_assert(sizeof(CellMove) == 2 * sizeof(int32_t));
  const auto list = ops_.device().allocate(moves.size_bytes(), "moves of cells");
  const device::Drain drain(queue_);
  queue_.upload(moves.data(), *list, 0, moves.size_bytes());
  ops_.move_cells(queue_, cells_, *list, std::ssize(moves));
  queue_.finish();
}

template <class Work>
void DeviceStore::each_block(std::span<const int32_t> slots, bool changes, Work&& work) const {
  const size_t nbytes = kBlockCells * key_nbytes(view_);
  std::vector<uint8_t> block(nbytes);
  KvView view = view_;
  view.k = block.data();
  const device::Drain drain(queue_);
  for (size_t begin = 0, end; begin < slots.size(); begin = end) {
    const int32_t number = slots[begin] / kBlockCells;
    const size_t at = static_cast<size_t>(number) * nbytes;
    queue_.download(*k_, at, block.data(), nbytes);
    queue_.finish();
    for (end = begin; end < slots.size() && slots[end] / kBlockCells == number; ++end)
      work(end, view, slots[end] % kBlockCells);
    if (!changes) continue;
    queue_.upload(block.data(), *k_, at, nbytes);
    queue_.finish();
  }
}

void DeviceStore::read(std::span<const int32_t> slots, uint8_t* out) const {
  const size_t keys = key_nbytes(view_), values = value_nbytes(view_);
  const device::Drain drain(queue_);
  for (size_t i = 0; i < slots.size(); ++i)
    queue_.download(*v_, static_cast<size_t>(slots[i]) * values, out + i * (keys + values) + keys,
                    values);
  queue_.finish();
  each_block(slots, false, [&](size_t i, const KvView& block, int32_t slot) {
    read_keys(block, slot, out + i * (keys + values));
  });
}

void DeviceStore::write(std::span<const int32_t> slots, const uint8_t* in) {
  const size_t keys = key_nbytes(view_), values = value_nbytes(view_);
  const device::Drain drain(queue_);
  for (size_t i = 0; i < slots.size(); ++i)
    queue_.upload(in + i * (keys + values) + keys, *v_, static_cast<size_t>(slots[i]) * values,
                  values);
  queue_.finish();
  each_block(slots, true, [&](size_t i, const KvView& block, int32_t slot) {
    write_keys(block, slot, in + i * (keys + values));
  });
}

void DeviceStore::edit_keys(std::span<const int32_t> slots, const Edit& edit) {
  each_block(slots, true, [&](size_t, const KvView& block, int32_t slot) { edit(block, slot); });
}

}  // namespace pyflow::kv
