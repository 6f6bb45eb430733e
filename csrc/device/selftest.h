// Whether a device computes with the bits of the scalar table. What a driver says of itself is not
// trusted: some that flush subnormals or lack a fused multiply-add say nothing of it, others have
// more than they say.
#pragma once

#include <span>
#include <string>

#include "core/dtype.h"
#include "device/ops.h"

namespace pyflow::device {

// The formats that `pyflow doctor` tries: plain floats, minimums with sub-blocks of 32, offsets with
// sub-blocks of 16.
inline constexpr DType kProbedFormats[] = {DType::F16, DType::Q4_K, DType::Q6_K};

// Runs every operation, and products of these formats, on random and extreme values. Returns the
// first result that differs, with its input, what was expected and what was found; nothing if the
// device is exact. Where a NaN is expected, any NaN is right. Throws DeviceError.
std::string first_fault(Ops& ops, std::span<const DType> formats);
// The same of products of many rows by matrix units alone.
std::string first_fault_of_units(Ops& ops, std::span<const DType> formats);
// And of the choice of experts.
std::string choice_fault(Ops& ops);

}  // namespace pyflow::device
