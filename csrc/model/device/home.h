// Where a block runs and its matrices lie.
#pragma once

#include <cstdint>

namespace pyflow {

// A group of devices by its number, or the host.
using Home = int32_t;
inline constexpr Home kHost = -1;

}  // namespace pyflow
