// Memory of a step for a block of experts (moe.cpp).
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/choice.h"
#include "model/step.h"

namespace pyflow {

struct MoeSizes {
  int64_t n_embd, n_experts, top_k, n_ff, n_ff_shared;
  bool routes_by_norm;
};

struct MoeBuffers {
  float *logits, *shared_logit, *gate, *up, *shared_gate, *shared_up, *y, *shared_y;  // temp
  float *p, *keys, *shared_p, *routed, *gathered;  // row_temp, as the following
  int32_t *chosen, *slot;                          // n_rows x top_k
  int32_t* row;                                    // of each slot
  int32_t* first;                                  // slot of each expert; the end
  int32_t *active, *n_active;                      // experts with slots

  MoeBuffers(const MoeSizes& moe, const Step& s) {
    const int64_t slots = s.n_rows * moe.top_k;
    float* at = s.temp;
    const auto take = [&at](int64_t n) { return std::exchange(at, at + n); };
    const auto take_ints = [&](int64_t n) { return reinterpret_cast<int32_t*>(take(n)); };
    logits = take(s.n_rows * padded(moe.n_experts));
    shared_logit = take(s.n_rows * kTileRows);
    gate = take(slots * padded(moe.n_ff));
    up = take(slots * padded(moe.n_ff));
    shared_gate = take(s.n_rows * padded(moe.n_ff_shared));
    shared_up = take(s.n_rows * padded(moe.n_ff_shared));
    y = take(slots * padded(moe.n_embd));
    shared_y = at;
    at = s.row_temp;
    p = take(slots);
    keys = take(s.n_rows * moe.n_experts);
    shared_p = take(s.n_rows);
    chosen = take_ints(slots);
    slot = take_ints(slots);
    row = take_ints(slots);
    first = take_ints(moe.n_experts + 1);
    active = take_ints(moe.n_experts);
    n_active = take_ints(1);
    routed = take(moe.routes_by_norm ? s.n_rows * padded(moe.n_embd) : 0);
    gathered = at;
  }
  Slots slots() const { return {chosen, slot, row, first, active, n_active}; }
};

}  // namespace pyflow
