#include "kv/storage.h"

#include <cstring>
#include <string>

#include "core/errors.h"

namespace pyflow::kv {
namespace {

constexpr int64_t kBlockCells = 16;  // cells that share a block of keys
constexpr int64_t kBlockDims = 32;   // values that share a scale in Q8_0
constexpr int64_t kLanes = 16;       // values that a kernel takes at a time
constexpr size_t kAlign = 64;

// Bytes of keys, and as many of values, of one slot. Q8_0: an f16 scale and 32 bytes.
int64_t slot_nbytes(const LayerKv& layer, CacheType type) {
  const int64_t n = layer.n_kv_heads * layer.head_dim;
  return type == CacheType::F16 ? n * 2 : n / kBlockDims * (2 + kBlockDims);
}

void check(const LayerKv& layer, size_t i, CacheType type) {
  const std::string where = "KV cache: layer " + std::to_string(i);
  constexpr int64_t kMost = int64_t{1} << 20;  // no model comes near; keeps products in 64 bits
  if (layer.n_kv_heads < 1 || layer.n_kv_heads > kMost || layer.head_dim < 1 ||
      layer.head_dim > kMost)
    throw ShapeError(where + " has " + std::to_string(layer.n_kv_heads) + " heads of " +
                     std::to_string(layer.head_dim) + "; expected at least one of each");
  if (type == CacheType::Q8_0 && layer.head_dim % kBlockDims != 0)
    throw UnsupportedError(where + ": heads of " + std::to_string(layer.head_dim) +
                           " do not divide into blocks of 32; use cache type f16");
  if (layer.head_dim % kLanes != 0 || layer.head_dim > kMaxHeadDim)
    throw UnsupportedError(where + ": heads of " + std::to_string(layer.head_dim) +
                           "; this build has kernels for multiples of 16 up to " +
                           std::to_string(kMaxHeadDim));
}

// Bytes of keys (or values) of a layer, rounded up so that the next array starts aligned.
size_t layer_nbytes(const LayerKv& layer, int64_t n_slots, CacheType type) {
  const auto slots = static_cast<size_t>((n_slots + kBlockCells - 1) / kBlockCells * kBlockCells);
  size_t bytes = 0;
  if (__builtin_mul_overflow(slots, static_cast<size_t>(slot_nbytes(layer, type)), &bytes) ||
      bytes > SIZE_MAX / 2)
    throw ResourceError("KV cache: " + std::to_string(n_slots) +
                        " cells are more than memory can address; choose a smaller context");
  return (bytes + kAlign - 1) / kAlign * kAlign;
}

}  // namespace

size_t Storage::nbytes(const KvConfig& config, std::span<const GroupPlan> groups) {
  size_t total = 0;
  for (const GroupPlan& group : groups)
    for (size_t i : group.layers) {
      check(config.layers[i], i, config.type);
      const size_t bytes = layer_nbytes(config.layers[i], group.capacity, config.type);
      if (__builtin_add_overflow(total, 2 * bytes, &total))
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
      const size_t bytes = layer_nbytes(layer, group.capacity, config.type);
      views_[i] = {p, p + bytes, config.type, layer.n_kv_heads, layer.head_dim};
      p += 2 * bytes;
    }
}

namespace {

size_t slot_nbytes(const KvView& kv) {
  return static_cast<size_t>(slot_nbytes({kv.n_kv_heads, kv.head_dim, 0}, kv.type));
}

// Where the keys of a slot's block begin, and the slot's lane there.
uint8_t* key_block(const KvView& kv, int32_t slot) {
  return kv.k + static_cast<size_t>(slot / kBlockCells * kBlockCells) * slot_nbytes(kv);
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
  const int64_t n = kv.n_kv_heads * kv.head_dim;
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

size_t Storage::cell_nbytes(size_t layer) const { return 2 * slot_nbytes(views_[layer]); }

void Storage::copy(size_t layer, int32_t from, int32_t to) {
  const KvView& kv = views_[layer];
  const size_t bytes = slot_nbytes(kv), a = key_lane(from), b = key_lane(to);
  std::memcpy(kv.v + static_cast<size_t>(to) * bytes, kv.v + static_cast<size_t>(from) * bytes,
              bytes);
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
  std::memcpy(out, kv.v + static_cast<size_t>(slot) * slot_nbytes(kv), slot_nbytes(kv));
}

void Storage::write(size_t layer, int32_t slot, const uint8_t* in) {
  const KvView& kv = views_[layer];
  uint8_t* dst = key_block(kv, slot);
  for_key_pieces(kv, [&](size_t at, size_t width) {
    std::memcpy(dst + at + key_lane(slot) * width, in, width);
    in += width;
  });
  std::memcpy(kv.v + static_cast<size_t>(slot) * slot_nbytes(kv), in, slot_nbytes(kv));
}

}  // namespace pyflow::kv
