// What a context has on one device: a queue, memory to compute in, and cells.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/ops.h"
#include "kv/kv_cache.h"
#include "kv/storage/device_store.h"
#include "model/device/device_stage.h"
#include "model/device/device_step.h"

namespace pyflow {

class Stage;

// What a context's memory on devices is laid out for.
struct DeviceRunSizes {
  int64_t n_batch, n_ctx;
  CacheType cells;
  std::shared_ptr<Link> ranks;  // that share the layers; null: none do
};

class MemberRun {
 public:
  // Throws ResourceError.
  MemberRun(const Stage& stage, const DeviceStage& device, const DeviceRunSizes& sizes);
  // Bytes on a device of a group, cells aside.
  static size_t nbytes(const Stage& stage, Home group, const DeviceRunSizes& sizes);
  // Floats of what a gather packs at once; 0 for a device alone.
  static int64_t packed_floats(const Stage& stage, Home group, CacheType cells);

  device::Queue& queue() { return *queue_; }
  device::Device& device() const { return device_.device(); }
  const Membership& own() const { return device_.own(); }
  // The cells of its heads of a layer.
  std::unique_ptr<kv::RemoteCells> make_cells(size_t layer, const LayerKv& kv, CacheType type,
                                              int64_t n_cells);
  // A step begins, whose cells the cache has reserved.
  DeviceMember begin(const StepRows& rows, const KvCache& kv, const std::vector<RopeTable>& ropes);
  // A register from and to the host's memory, n rows `stride` floats apart.
  void upload(size_t reg, const float* from, int64_t n);
  void download(size_t reg, float* to, int64_t n);
  FloatRows normed() { return {head_.get(), 0, stride_}; }
  FloatRows logits() { return {logits_.get(), 0, padded(n_vocab_)}; }

 private:
  using Buffer = std::unique_ptr<device::DeviceBuffer>;
  // What the layers of a group of the cache see in a step.
  struct Seen {
    device::ViewTable table;
    Buffer slots, views, runs;
  };
  void make_room(int64_t n_blocks);
  // Room for n bytes, which grows where it must.
  void send(Buffer& to, const void* from, size_t nbytes, const char* what);

  const DeviceStage& device_;
  device::Ops ops_;
  std::unique_ptr<device::Queue> queue_;
  int64_t stride_, n_vocab_;
  size_t row_partials_ = 0;  // bytes of attention of one row and block, all heads
  std::array<Buffer, kRegisters> registers_;
  Buffer temp_, acts_, pairs_, attention_, packed_, head_, logits_;
  std::vector<Buffer> ropes_;
  std::vector<const kv::DeviceStore*> stores_;  // by layer; null: another memory has its cells
  std::vector<Seen> seen_;                      // by group
};

}  // namespace pyflow
