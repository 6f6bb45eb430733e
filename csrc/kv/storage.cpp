#include "kv/storage.h"

#include <cstring>
#include <string>

#include "core/errors.h"

namespace pyflow::kv {
namespace {

constexpr int64_t kBlockCells = 16;  // cells that share a block of keys
constexpr int64_t kBlockDims = 32;   // values that share a scale in Q8_0
constexpr size_t kAlign = 64;

// Bytes of the keys, or of the values, of one slot. Q8_0: an f16 scale and 32 bytes.
size_t slot_nbytes(int64_t n_kv_heads, int64_t cell_dim, CacheType type) {
  const int64_t n = n_kv_heads * cell_dim;
  return static_cast<size_t>(type == CacheType::F16 ? n * 2 : n / kBlockDims * (2 + kBlockDims));
}

void check(const LayerKv& layer, size_t i) {
  constexpr int64_t kMost = int64_t{1} << 20;  // no model comes near; keeps products in 64 bits
  const auto within = [](int64_t n, int64_t most) { return 1 <= n && n <= most; };
  if (!within(layer.n_kv_heads, kMost) || !within(layer.key_dim, kMaxHeadDim) ||
      !within(layer.value_dim, kMaxHeadDim))
    throw ShapeError("KV cache: layer " + std::to_string(i) + ": expected 1 to " +
                     std::to_string(kMost) + " heads of 1 to " + std::to_string(kMaxHeadDim) +
                     ", found " + std::to_string(layer.n_kv_heads) + " of " +
                     std::to_string(layer.key_dim) + ", values of " +
                     std::to_string(layer.value_dim));
}

// Bytes of the arrays of a layer, each rounded up so that the next one starts aligned.
struct LayerBytes {
  size_t keys, values;
};
LayerBytes layer_nbytes(const LayerKv& layer, int64_t n_slots, CacheType type) {
  const auto slots = static_cast<size_t>((n_slots + kBlockCells - 1) / kBlockCells * kBlockCells);
  const auto array = [&](int64_t head_dim) {
    size_t bytes = 0;
    if (__builtin_mul_overflow(slots, slot_nbytes(layer.n_kv_heads, cell_dim(head_dim, type), type),
                               &bytes) ||
        bytes > SIZE_MAX / 4)
      throw ResourceError("KV cache: " + std::to_string(n_slots) +
                          " cells are more than memory can address; choose a smaller context");
    return (bytes + kAlign - 1) / kAlign * kAlign;
  };
  return {array(layer.key_dim), array(layer.value_dim)};
}

}  // namespace

size_t Storage::nbytes(const KvConfig& config, std::span<const GroupPlan> groups) {
  size_t total = 0;
  for (const GroupPlan& group : groups)
    for (size_t i : group.layers) {
      check(config.layers[i], i);
      const auto [keys, values] = layer_nbytes(config.layers[i], group.capacity, config.type);
      if (__builtin_add_overflow(total, keys + values, &total))
        throw ResourceError(
            "KV cache: more bytes than memory can address; choose a smaller context");
    }
  return total;
}

Storage::Storage(const KvConfig& config, std::span<const GroupPlan> groups)
    : buffer_(nbytes(config, groups), "KV cache"), views_(config.layers.size()) {
  if (config.place) config.place(buffer_);
  uint8_t* p = buffer_.data();
  for (const GroupPlan& group : groups)
    for (size_t i : group.layers) {
      const LayerKv& layer = config.layers[i];
      const auto [keys, values] = layer_nbytes(layer, group.capacity, config.type);
      views_[i] = {.k = p,
                   .v = p + keys,
                   .type = config.type,
                   .n_kv_heads = layer.n_kv_heads,
                   .key_dim = cell_dim(layer.key_dim, config.type),
                   .value_dim = cell_dim(layer.value_dim, config.type)};
      p += keys + values;
    }
}

namespace {

size_t key_nbytes(const KvView& kv) { return slot_nbytes(kv.n_kv_heads, kv.key_dim, kv.type); }
size_t value_nbytes(const KvView& kv) { return slot_nbytes(kv.n_kv_heads, kv.value_dim, kv.type); }

uint8_t* value_at(const KvView& kv, int32_t slot) {
  return kv.v + static_cast<size_t>(slot) * value_nbytes(kv);
}

// Where the keys of a slot's block begin, and the slot's lane there.
uint8_t* key_block(const KvView& kv, int32_t slot) {
  return kv.k + static_cast<size_t>(slot / kBlockCells * kBlockCells) * key_nbytes(kv);
}
size_t key_lane(int32_t slot) { return static_cast<size_t>(slot % kBlockCells); }

// Keys: in each block of sixteen cells, pieces of sixteen f16 (a dimension, or 32 scales' worth) or
// of sixteen bytes; a cell is one lane of every piece. Calls f(where the piece begins, bytes of a lane).
template <class F>
void for_key_pieces(const KvView& kv, F&& f) {
  size_t at = 0;
  const auto piece = [&](size_t width) {
    f(at, width);
    at += kBlockCells * width;
  };
  const int64_t n = kv.n_kv_heads * kv.key_dim;
  if (kv.type == CacheType::F16) {
    for (int64_t i = 0; i < n; ++i) piece(2);
  } else {
    for (int64_t block = 0; block < n / kBlockDims; ++block) {
      piece(2);
      for (int64_t i = 0; i < kBlockDims; ++i) piece(1);
    }
  }
}

}  // namespace

size_t Storage::cell_nbytes(size_t layer) const {
  return key_nbytes(views_[layer]) + value_nbytes(views_[layer]);
}

void Storage::copy(size_t layer, int32_t from, int32_t to) {
  const KvView& kv = views_[layer];
  const size_t a = key_lane(from), b = key_lane(to);
  std::memcpy(value_at(kv, to), value_at(kv, from), value_nbytes(kv));
  const uint8_t* src = key_block(kv, from);
  uint8_t* dst = key_block(kv, to);
  for_key_pieces(kv, [&](size_t at, size_t width) {
    std::memcpy(dst + at + b * width, src + at + a * width, width);
  });
}

void Storage::read(size_t layer, int32_t slot, uint8_t* out) const {
  const KvView& kv = views_[layer];
  const uint8_t* src = key_block(kv, slot);
  for_key_pieces(kv, [&](size_t at, size_t width) {
    std::memcpy(out, src + at + key_lane(slot) * width, width);
    out += width;
  });
  std::memcpy(out, value_at(kv, slot), value_nbytes(kv));
}

void Storage::write(size_t layer, int32_t slot, const uint8_t* in) {
  const KvView& kv = views_[layer];
  uint8_t* dst = key_block(kv, slot);
  for_key_pieces(kv, [&](size_t at, size_t width) {
    std::memcpy(dst + at + key_lane(slot) * width, in, width);
    in += width;
  });
  std::memcpy(value_at(kv, slot), in, value_nbytes(kv));
}

}  // namespace pyflow::kv
