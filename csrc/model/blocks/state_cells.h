// States of recurrent blocks as f32 in the values of cells of a window: so prefixes, drafts and beams
// share, keep and drop them as they do with keys.
#pragma once

#include <cstdint>

#include "core/errors.h"
#include "kv/config.h"

namespace pyflow {

// A float of a state takes the bytes of so many values of a cell, in cells of both types.
inline constexpr int64_t kStateValues = 4;

// Cells of a layer whose rows read the states of `window` positions, their own included. kind: the
// block's, for messages.
inline LayerKv state_cells(const std::string& kind, int64_t n_floats, int64_t window) {
  if (n_floats * kStateValues > kMaxHeadDim)
    throw UnsupportedError(kind + ": expected states of up to " +
                           std::to_string(kMaxHeadDim / kStateValues) + " values, found " +
                           std::to_string(n_floats));
  return {.n_kv_heads = 1, .key_dim = 1, .value_dim = kStateValues * n_floats, .window = window};
}

// The state's floats from `at` on, in a cell.
inline uint8_t* state_at(const KvView& kv, int64_t slot, int64_t at) {
  const int64_t nbytes = kv.type == CacheType::F16 ? kv.value_dim * 2 : kv.value_dim / 32 * 34;
  return kv.v + slot * nbytes + at * static_cast<int64_t>(sizeof(float));
}

}  // namespace pyflow
