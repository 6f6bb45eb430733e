#include "kv/storage/split_store.h"

#include <cstring>
#include <utility>

#include "kv/storage/cell_layout.h"

namespace pyflow::kv {

SplitStore::SplitStore(const LayerKv& layer, CacheType type, std::vector<Part> parts)
    : parts_(std::move(parts)) {
  const KvView view = layer_view(layer, type, nullptr, nullptr);
  const auto n_heads = static_cast<size_t>(layer.n_kv_heads);
  keys_of_head_ = key_nbytes(view) / n_heads;
  values_of_head_ = value_nbytes(view) / n_heads;
  for (Part& part : parts_) n_heads_ += static_cast<size_t>(part.n_kv_heads);
}

void SplitStore::copy(std::span<const CellMove> moves) {
  for (const Part& part : parts_) part.cells->copy(moves);
}

// A cell has its keys head by head, then its values.
template <class Work>
void SplitStore::each_piece(std::span<const int32_t> slots, Work&& work) const {
  size_t first = 0;
  for (const Part& part : parts_) {
    const auto n = static_cast<size_t>(part.n_kv_heads);
    const size_t keys = n * keys_of_head_, values = n * values_of_head_;
    std::vector<uint8_t> cells(slots.size() * (keys + values));
    work(*part.cells, cells, [&](auto&& copy) {
      for (size_t i = 0; i < slots.size(); ++i) {
        const size_t whole = i * n_heads_ * (keys_of_head_ + values_of_head_);
        uint8_t* cell = cells.data() + i * (keys + values);
        copy(cell, whole + first * keys_of_head_, keys);
        copy(cell + keys, whole + n_heads_ * keys_of_head_ + first * values_of_head_, values);
      }
    });
    first += n;
  }
}

void SplitStore::read(std::span<const int32_t> slots, uint8_t* out) const {
  each_piece(slots, [&](RemoteCells& part, std::vector<uint8_t>& cells, auto&& pieces) {
    part.read(slots, cells.data());
    pieces([&](uint8_t* own, size_t at, size_t n) { std::memcpy(out + at, own, n); });
  });
}

void SplitStore::write(std::span<const int32_t> slots, const uint8_t* in) {
  each_piece(slots, [&](RemoteCells& part, std::vector<uint8_t>& cells, auto&& pieces) {
    pieces([&](uint8_t* own, size_t at, size_t n) { std::memcpy(own, in + at, n); });
    part.write(slots, cells.data());
  });
}

void SplitStore::edit_keys(std::span<const int32_t> slots, const Edit& edit) {
  for (const Part& part : parts_) part.cells->edit_keys(slots, edit);
}

}  // namespace pyflow::kv
