// How the keys and values of a layer's cells lie in memory, as kernels/table.h draws it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/table.h"
#include "kv/config.h"
#include "kv/runs.h"

namespace pyflow::kv {

inline constexpr int64_t kBlockCells = 16;  // cells that share a block of keys

// Bytes of the arrays of a layer for so many cells, each rounded up so that what follows starts
// aligned. Throws ResourceError where no memory could hold them.
struct LayerBytes {
  size_t keys, values;
};
LayerBytes layer_nbytes(const LayerKv& layer, int64_t n_cells, CacheType type);
// The cells of a layer whose arrays begin at these places.
KvView layer_view(const LayerKv& layer, CacheType type, uint8_t* keys, uint8_t* values);

// Bytes of the keys, or of the values, of a cell; none of values that are in keys.
size_t key_nbytes(const KvView& view);
size_t value_nbytes(const KvView& view);

// Copies a cell, bit for bit.
void copy_cell(const KvView& view, const CellMove& move);
// Reads or writes a cell: its keys head by head, then its values.
void read_cell(const KvView& view, int32_t slot, uint8_t* out);
void write_cell(const KvView& view, int32_t slot, const uint8_t* in);
// The same of its keys alone.
void read_keys(const KvView& view, int32_t slot, uint8_t* out);
void write_keys(const KvView& view, int32_t slot, const uint8_t* in);

}  // namespace pyflow::kv
