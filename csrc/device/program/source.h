// The source of a program: words, the kernels that every model needs, and products by formats.
#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>

#include "core/dtype.h"
#include "device/device.h"

namespace pyflow::device {

// The files of kernels/, by name without ending. The build makes it (kernels/embed.cmake).
const std::map<std::string_view, std::string_view>& kernel_texts();

struct Source {
  std::string text, options;
};

// For the weights of these formats, on such a device. Throws DeviceError if it has too few
// work-items in a group.
Source program_source(const DeviceInfo& info, std::span<const DType> formats);

// Slices of a tile that a group of such a device multiplies at the same time (kernels/matmul.dev).
int slices_of(const DeviceInfo& info);

}  // namespace pyflow::device
