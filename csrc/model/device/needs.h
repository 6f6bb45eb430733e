// What blocks on a device say when a stage is built: the device's memory is laid out by it.
#pragma once

#include <cstdint>
#include <set>
#include <utility>

namespace pyflow {

class DeviceNeeds {
 public:
  // n values at v, norm weights or a bias, which the block will name again; null: nothing.
  void vector(const float* v, int64_t n) {
    if (v) vectors_.emplace(v, n);
  }
  const std::set<std::pair<const float*, int64_t>>& vectors() const { return vectors_; }

 private:
  std::set<std::pair<const float*, int64_t>> vectors_;
};

}  // namespace pyflow
