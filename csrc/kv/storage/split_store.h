// Cells of one layer whose heads lie in several memories, in order.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kernels/table.h"
#include "kv/config.h"
#include "kv/storage/remote_cells.h"

namespace pyflow::kv {

class SplitStore final : public RemoteCells {
 public:
  struct Part {
    int64_t n_kv_heads;
    std::unique_ptr<RemoteCells> cells;
  };
  // All heads of the layer.
  SplitStore(const LayerKv& layer, CacheType type, std::vector<Part> parts);

  void copy(std::span<const CellMove> moves) override;
  void read(std::span<const int32_t> slots, uint8_t* out) const override;
  void write(std::span<const int32_t> slots, const uint8_t* in) override;
  void edit_keys(std::span<const int32_t> slots, const Edit& edit) override;

 private:
  // Calls work(part, memory for its cells, pieces) for each part; pieces(copy) calls copy(place
  // there, place among whole cells, bytes) for the keys and the values of each cell.
  template <class Work>
  void each_piece(std::span<const int32_t> slots, Work&& work) const;

  std::vector<Part> parts_;
  size_t n_heads_ = 0, keys_of_head_, values_of_head_;  // bytes
};

}  // namespace pyflow::kv
