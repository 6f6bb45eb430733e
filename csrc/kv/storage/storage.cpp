#include "kv/storage/storage.h"

#include <string>

#include "core/errors.h"
#include "kv/storage/cell_layout.h"

namespace pyflow::kv {
namespace {

void check(const LayerKv& layer, size_t i) {
  constexpr int64_t kMost = int64_t{1} << 20;  // no model comes near; keeps products in 64 bits
  const auto within = [](int64_t n, int64_t most) { return 1 <= n && n <= most; };
  if (!within(layer.n_kv_heads, kMost) || !within(layer.key_dim, kMaxHeadDim) ||
      !within(layer.value_dim, kMaxHeadDim) ||
      (layer.values_in_keys && layer.value_dim > layer.key_dim))
    throw ShapeError("KV cache: layer " + std::to_string(i) + ": expected 1 to " +
                     std::to_string(kMost) + " heads of 1 to " + std::to_string(kMaxHeadDim) +
                     ", found " + std::to_string(layer.n_kv_heads) + " of " +
                     std::to_string(layer.key_dim) + ", values of " +
                     std::to_string(layer.value_dim));
}

}  // namespace

size_t Storage::nbytes(const KvConfig& config, std::span<const GroupPlan> groups, bool remote) {
  size_t total = 0;
  for (const GroupPlan& group : groups)
    for (size_t i : group.layers) {
      check(config.layers[i], i);
      if (config.is_remote(i) != remote) continue;
      const auto [keys, values] = layer_nbytes(config.layers[i], group.capacity, config.type);
      if (__builtin_add_overflow(total, keys + values, &total))
        throw ResourceError(
            "KV cache: more bytes than memory can address; choose a smaller context");
    }
  return total;
}

Storage::Storage(const KvConfig& config, std::span<const GroupPlan> groups)
    : buffer_(nbytes(config, groups), "KV cache"),
      views_(config.layers.size()),
      remote_(config.layers.size()) {
  if (config.place) config.place(buffer_);
  uint8_t* p = buffer_.data();
  for (const GroupPlan& group : groups)
    for (size_t i : group.layers) {
      const LayerKv& layer = config.layers[i];
      views_[i] = layer_view(layer, config.type, nullptr, nullptr);
      if (config.is_remote(i)) {
        remote_[i] = config.make_remote(i, group.capacity);
        continue;
      }
      const auto [keys, values] = layer_nbytes(layer, group.capacity, config.type);
      views_[i] = layer_view(layer, config.type, p, p + keys);
      p += keys + values;
    }
}

size_t Storage::key_nbytes(size_t layer) const { return kv::key_nbytes(views_[layer]); }

size_t Storage::cell_nbytes(size_t layer) const {
  return kv::key_nbytes(views_[layer]) + value_nbytes(views_[layer]);
}

void Storage::copy(size_t layer, std::span<const CellMove> moves) {
  if (remote(layer)) return remote(layer)->copy(moves);
  for (const CellMove& move : moves) copy_cell(views_[layer], move);
}

void Storage::read(size_t layer, std::span<const int32_t> slots, uint8_t* out) const {
  if (remote(layer)) return remote(layer)->read(slots, out);
  for (size_t i = 0; i < slots.size(); ++i)
    read_cell(views_[layer], slots[i], out + i * cell_nbytes(layer));
}

void Storage::write(size_t layer, std::span<const int32_t> slots, const uint8_t* in) {
  if (remote(layer)) return remote(layer)->write(slots, in);
  for (size_t i = 0; i < slots.size(); ++i)
    write_cell(views_[layer], slots[i], in + i * cell_nbytes(layer));
}

void Storage::edit_keys(size_t layer, std::span<const int32_t> slots,
                        const RemoteCells::Edit& edit) {
  if (remote(layer)) return remote(layer)->edit_keys(slots, edit);
  for (const int32_t slot : slots) edit(views_[layer], slot);
}

}  // namespace pyflow::kv
