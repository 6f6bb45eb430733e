#include "kv/storage/cell_layout.h"

#include <cstring>
#include <string>

#include "core/errors.h"

namespace pyflow::kv {
namespace {

constexpr int64_t kBlockDims = 32;  // values that share a scale in Q8_0
constexpr size_t kAlign = 64;

// Bytes of the keys, or of the values, of one slot. Q8_0: an f16 scale and 32 bytes.
size_t slot_nbytes(int64_t n_kv_heads, int64_t cell_dim, CacheType type) {
  const int64_t n = n_kv_heads * cell_dim;
  return static_cast<size_t>(type == CacheType::F16 ? n * 2 : n / kBlockDims * (2 + kBlockDims));
}

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
  return {array(layer.key_dim), layer.values_in_keys ? 0 : array(layer.value_dim)};
}

KvView layer_view(const LayerKv& layer, CacheType type, uint8_t* keys, uint8_t* values) {
  return {.k = keys,
          .v = values,
          .type = type,
          .n_kv_heads = layer.n_kv_heads,
          .key_dim = cell_dim(layer.key_dim, type),
          .value_dim = cell_dim(layer.value_dim, type),
          .values_in_keys = layer.values_in_keys};
}

size_t key_nbytes(const KvView& kv) { return slot_nbytes(kv.n_kv_heads, kv.key_dim, kv.type); }
size_t value_nbytes(const KvView& kv) {
  return kv.values_in_keys ? 0 : slot_nbytes(kv.n_kv_heads, kv.value_dim, kv.type);
}

void copy_cell(const KvView& kv, const CellMove& move) {
  const size_t a = key_lane(move.from), b = key_lane(move.to);
  std::memcpy(value_at(kv, move.to), value_at(kv, move.from), value_nbytes(kv));
  const uint8_t* src = key_block(kv, move.from);
  uint8_t* dst = key_block(kv, move.to);
  for_key_pieces(kv, [&](size_t at, size_t width) {
    std::memcpy(dst + at + b * width, src + at + a * width, width);
  });
}

void read_keys(const KvView& kv, int32_t slot, uint8_t* out) {
  const uint8_t* src = key_block(kv, slot);
  for_key_pieces(kv, [&](size_t at, size_t width) {
    std::memcpy(out, src + at + key_lane(slot) * width, width);
    out += width;
  });
}

void write_keys(const KvView& kv, int32_t slot, const uint8_t* in) {
  uint8_t* dst = key_block(kv, slot);
  for_key_pieces(kv, [&](size_t at, size_t width) {
    std::memcpy(dst + at + key_lane(slot) * width, in, width);
    in += width;
  });
}

void read_cell(const KvView& kv, int32_t slot, uint8_t* out) {
  read_keys(kv, slot, out);
  std::memcpy(out + key_nbytes(kv), value_at(kv, slot), value_nbytes(kv));
}

void write_cell(const KvView& kv, int32_t slot, const uint8_t* in) {
  write_keys(kv, slot, in);
  std::memcpy(value_at(kv, slot), in + key_nbytes(kv), value_nbytes(kv));
}

}  // namespace pyflow::kv
