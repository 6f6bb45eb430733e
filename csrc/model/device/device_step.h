// One step as the blocks on devices see it: what they record their commands with.
//
// A block records for a group of devices that share its matrices by rows, mostly for one alone:
//
//   const auto inner = s.take(n_ff);                       // rows, on each device
//   s.each([&](DeviceMember& m) { m.multiply({up, inner[m.number]}, ...); });  // its columns alone
//   s.gather(inner, Cut::tiles(n_ff));                     // now all devices have all columns
//
// Registers are whole on every device when a block begins, and when it ends.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "device/ops.h"
#include "link/link.h"
#include "model/cut.h"
#include "model/device/device_weights.h"
#include "model/step.h"

namespace pyflow {

// The angles of one RopeSpec, by row.
struct DeviceRope {
  device::FloatRows cos_sin;
  int64_t n_pairs;
  bool interleaved;
};

// Where the keys and values of a layer are, and what its rows see.
struct DeviceLayer {
  device::DeviceCells cells;
  const device::DeviceBuffer *slots, *views, *runs;
  int64_t most_blocks, most_spans;
};

struct DeviceProduct {
  const PackedTensor* weight;
  device::FloatRows y;
};

// Where a step computes; of the context. A gather packs and unpacks columns in `packed`, which has
// room for gathered_rows of them.
struct DeviceMemory {
  device::DeviceBuffer *temp, *acts, *pairs, *attention, *packed;
};

using device::FloatRows;

// Columns from `column` on.
inline FloatRows columns_of(const FloatRows& rows, int64_t column) {
  return {rows.buffer, rows.first + column, rows.stride};
}

// One device of the group.
class DeviceMember {
 public:
  DeviceMember(Membership own, size_t at, const DeviceWeights& of, device::Ops& by,
               device::Queue& on, DeviceMemory in, int64_t rows)
      : number(at), n_rows(rows), weights(of), ops(by), queue(on), memory(in), own_(own) {}

  const size_t number;  // among those that are here
  const int64_t n_rows;
  const DeviceWeights& weights;
  device::Ops& ops;
  device::Queue& queue;
  DeviceMemory memory;
  std::array<FloatRows, kRegisters> registers{};  // rows of n_embd floats
  std::vector<DeviceRope> ropes;
  std::vector<DeviceLayer> layers;  // by number of those that cache

  // Its rows of a matrix, or columns of what comes of it; its units of these.
  Share rows_of(const Cut& cut) const { return cut.rows_of(own_.number, own_.of); }
  const Membership& own() const { return own_; }
  Share units_of(const Cut& cut) const { return cut.units_of(own_.number, own_.of); }

  // y = W x, its rows of matrices over the same n rows of input, which is rounded as they need it.
  void multiply(std::span<const DeviceProduct> products, FloatRows x, int64_t n);
  // y = W x + bias; null: no bias.
  void multiply(const DeviceProduct& product, const Cut& cut, const float* bias, FloatRows x,
                int64_t n);
  // The same for each slot: of a matrix that it has chosen among a series, and n rows of input that
  // `sharing` slots have in turn.
  struct ChosenProduct {
    const DeviceSeries* series;
    FloatRows y;
  };
  void multiply(std::span<const ChosenProduct> products, FloatRows chosen, int64_t sharing,
                FloatRows x, int64_t n);
  // x += the same values in each of n_rows rows, of `width` in all its share; null: nothing.
  void add(FloatRows x, const float* values, int64_t n_rows, int64_t width, const Share& own);

 private:
  Membership own_;
};

// The staging of gathers, in the host's memory, which serves every other one.
struct GatherMemory {
  std::array<float*, 2> staging;
  int64_t n_floats;             // of each
  std::shared_ptr<Link> ranks;  // that share the layers; null: none do
  size_t next = 0;
  bool asked = false;  // rank 0's wish to stop, which rides in its rounds

  // A round of ranks, of which each has some of the floats at `all`, one after the other. Throws
  // CancelledError on all of them if rank 0 has asked for that; LinkError.
  void exchange(float* all, std::span<const int64_t> n_floats);
};

class DeviceStep {
 public:
  using Poll = std::function<void()>;
  DeviceStep(std::vector<DeviceMember> all, GatherMemory& gathers, const Poll& poll)
      : members(std::move(all)), n_rows(members[0].n_rows), gathers_(gathers), poll_(poll) {}

  std::vector<DeviceMember> members;
  const int64_t n_rows;

  // Rows on each device, by its number.
  using Rows = std::vector<FloatRows>;
  // Of n floats in temp, until the block ends.
  Rows take(int64_t n);
  void end_block() { taken_ = 0; }
  Rows register_rows(size_t r) const;

  template <class Work>
  void each(Work&& work) {
    for (DeviceMember& member : members) work(member);
  }
  // Copies each device's columns of n_rows rows to the others. Waits for them; poll may throw.
  void gather(const Rows& rows, const Cut& cut) { gather(rows, cut, n_rows); }
  void gather(const Rows& rows, const Cut& cut, int64_t n_rows);

  // The first device's rows, as the host has them for a moment; waits for them. poll may throw.
  std::vector<float> download(const Rows& rows, int64_t n_rows);
  // Memory of the host that stays until the next step begins.
  std::vector<int32_t>& keep(size_t n);
  // Such memory to each device, where rows begin.
  void upload(const std::vector<int32_t>& kept, const Rows& to);

  const Poll& poll() const { return poll_; }

 private:
  void gather_some(const Rows& rows, const Cut& cut, int64_t n);

  int64_t taken_ = 0;
  std::deque<std::vector<int32_t>> kept_;
  GatherMemory& gathers_;
  const Poll& poll_;
};

}  // namespace pyflow
