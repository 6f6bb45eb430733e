// What the mocks of libcuda and of NVRTC share.
#pragma once

#include <string>

#include "device/cuda/api.h"

namespace mock {

inline constexpr int kVersion = 12'090;  // 12.9

// What the next call of a function answers, once, if a test wants it; otherwise success.
void answer(const std::string& function, pyflow::device::cuda::Result code);
pyflow::device::cuda::Result told(const std::string& function);

}  // namespace mock

#define TOLD() \
  if (const Result code = mock::told(__func__); code != kSuccess) return code
