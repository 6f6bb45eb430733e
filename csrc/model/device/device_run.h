// What a context has on a device: a queue, memory to compute in, and cells. Its steps put the
// commands of blocks on the queue.
#pragma once

#include <array>
#include <functional>
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
struct PlacedBlock;

// What a context's memory on the device is laid out for.
struct DeviceRunSizes {
  int64_t n_batch, n_ctx;
  CacheType cells;
};

class DeviceRun {
 public:
  // Throws ResourceError.
  DeviceRun(const Stage& stage, const DeviceRunSizes& sizes);
  // Bytes on the device, cells aside.
  static size_t nbytes(const Stage& stage, const DeviceRunSizes& sizes);

  std::unique_ptr<kv::RemoteCells> make_cells(size_t layer, const LayerKv& kv, CacheType type,
                                              int64_t n_cells);

  using Poll = std::function<void()>;
  // A step begins, whose cells the cache has reserved.
  void begin(const StepRows& rows, const KvCache& kv, const std::vector<RopeTable>& ropes);
  // A register from and to the host's memory, rows `stride` floats apart.
  void upload(size_t reg, const float* from);
  void download(size_t reg, float* to);
  // Runs blocks; at most two layers of them are on the queue. While it waits, it calls poll, which
  // may throw.
  void run(std::span<const PlacedBlock* const> blocks, const Poll& poll);
  // logits[i] for the listed rows of x, padded(n_vocab) floats apart; at most kHeadRows.
  void logits(std::span<const int32_t> rows, float* logits, const Poll& poll);
  void finish(const Poll& poll);
  // Waits for all commands, whatever they end in.
  void drain() noexcept;

 private:
  using Buffer = std::unique_ptr<device::DeviceBuffer>;
  // What the layers of a group see in a step.
  struct Seen {
    device::ViewTable table;
    Buffer slots, views, runs;
  };
  void make_room(int64_t n_blocks);
  // Room for n bytes, which grows where it must.
  void send(Buffer& to, const void* from, size_t nbytes, const char* what);

  const Stage& stage_;
  const DeviceStage& device_;
  device::Ops ops_;
  std::unique_ptr<device::Queue> queue_;
  int owner_;                // process id
  size_t row_partials_ = 0;  // bytes of attention of one row and block, all heads
  int64_t stride_;
  std::array<Buffer, kRegisters> registers_;
  Buffer temp_, acts_, pairs_, attention_, head_, logits_;
  std::vector<Buffer> ropes_;
  std::vector<const kv::DeviceStore*> stores_;  // by layer; null: the host has its cells
  std::vector<Seen> seen_;                      // by group
  std::unique_ptr<DeviceStep> step_;
  std::unique_ptr<device::Event> before_;
};

}  // namespace pyflow
