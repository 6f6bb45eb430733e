// The inputs of values as attention mixes them. Attention adds values up, sum p_c W_v x_c over
// cells c, which is W_v times the mixed inputs sum p_c x_c, one mix for each query head. So the
// mixes are what W_v is multiplied by in effect: a cell that many rows attend to, as most do to the
// first, counts accordingly, and errors in many cells count as the sum that attention makes of
// them.
//
// The attention kernels compute the mixes over the same keys, with slices of the inputs in place of
// values, as wide as these. Inputs are kept by slot as long as their cells may be seen.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "core/buffer.h"
#include "core/thread_pool.h"
#include "kernels/table.h"
#include "model/observer.h"

namespace pyflow {

class Mixing {
 public:
  // One thread, before the others mix. Throws ResourceError if the memory is refused.
  void reserve(const AttentionInput& in);
  // Every thread. Returns the mixes of the rows that are sampled, one row per query head.
  MatrixInput mix(Team& team, const AttentionInput& in, const KernelTable& kernels) const;

 private:
  std::unordered_map<const PackedTensor*, Buffer> inputs_;  // by slot; lasts
  Buffer shared_;                                           // reused by one layer after the other
};

}  // namespace pyflow
