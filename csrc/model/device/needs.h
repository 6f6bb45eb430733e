// What blocks on a device say when a stage is built: the device's memory is laid out by it.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "model/cut.h"
#include "quant/packed_tensor.h"

namespace pyflow {

class DeviceNeeds {
 public:
  explicit DeviceNeeds(int64_t n_members) : n_members_(n_members) {}
  // Devices that share the matrices.
  int64_t n_members() const { return n_members_; }
  // n values at v, norm weights or a bias, which the block will name again; null: nothing.
  void vector(const float* v, int64_t n) {
    if (v) vectors_.emplace(v, n);
  }
  // How the rows of a matrix are shared by the devices of a group; otherwise in tiles.
  void cut(const PackedTensor* matrix, const Cut& cut) { cuts_.insert_or_assign(matrix, cut); }

  // Matrices of which each row of a step may take some: they are to lie at one distance.
  void series(std::span<const PackedTensor* const> all) { series_.push_back(all); }

  const std::set<std::pair<const float*, int64_t>>& vectors() const { return vectors_; }
  const std::vector<std::span<const PackedTensor* const>>& all_series() const { return series_; }
  Cut cut_of(const PackedTensor& matrix) const {
    const auto found = cuts_.find(&matrix);
    return found == cuts_.end() ? Cut::tiles(matrix.rows()) : found->second;
  }

 private:
  int64_t n_members_;
  std::set<std::pair<const float*, int64_t>> vectors_;
  std::map<const PackedTensor*, Cut> cuts_;
  std::vector<std::span<const PackedTensor* const>> series_;
};

}  // namespace pyflow
