// What a row takes from layer to layer beside x (StageSpec::n_carried).
#pragma once

#include <string>

#include "core/errors.h"
#include "model/blocks/block.h"

namespace pyflow {

// The place of n of its floats that a block uses, as a parameter of it says.
inline int64_t carried(const BlockContext& c, const BlockSpec& spec, const char* parameter,
                       int64_t n) {
  const int64_t at = spec.integer(parameter);
  if (at < 0 || n < 1 || n > c.stage.n_carried - at)
    throw ShapeError(spec.kind + ": expected values within the " +
                     std::to_string(c.stage.n_carried) + " that rows carry, found " +
                     std::to_string(n) + " from " + std::to_string(at) + " on");
  return at;
}

}  // namespace pyflow
