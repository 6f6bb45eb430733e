// A block of experts as commands of devices (blocks/experts/moe.cpp).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/choice.h"
#include "model/device/device_step.h"
#include "model/spec.h"

namespace pyflow {

// Words of a slot in temp: its row, its place, its weight.
inline constexpr int64_t kSlotWords = 3;

struct ExpertWeights {
  size_t in, out;  // registers
  Choice choice;
  int64_t n_embd, n_ff, n_ff_shared;
  Activation activation;
  const PackedTensor *router, *shared_router;  // shared: null where there is none, as below
  std::span<const PackedTensor* const> gate, up, down;
  const PackedTensor *shared_gate, *shared_up, *shared_down;
  const float *router_bias, *gate_bias, *up_bias, *down_bias;  // of all experts; null: none
};

// How a block of experts chooses. Throws ShapeError.
Choice choice_of(const BlockSpec& spec);

// Steps of few rows choose on devices that have f64, and wait for nothing, where the largest logits
// are chosen and experts have no biases. Otherwise the host chooses, so that each expert is read once
// for all its rows.
void record_experts(DeviceStep& s, const ExpertWeights& w);

}  // namespace pyflow
