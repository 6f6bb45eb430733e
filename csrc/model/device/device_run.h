// A context's part on a group of devices. Its steps put the commands of blocks on their queues.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "model/device/member_run.h"

namespace pyflow {

struct PlacedBlock;

class DeviceRun {
 public:
  // Throws ResourceError.
  DeviceRun(const Stage& stage, Home group, const DeviceRunSizes& sizes);
  // Bytes on each device of the group, cells included; config: of all layers.
  static std::vector<size_t> nbytes(const Stage& stage, Home group, const DeviceRunSizes& sizes,
                                    const KvConfig& config);
  // Of the host's memory, where devices exchange what each has.
  static size_t staging_nbytes(const Stage& stage, Home group, const DeviceRunSizes& sizes);

  std::unique_ptr<kv::RemoteCells> make_cells(size_t layer, const LayerKv& kv, CacheType type,
                                              int64_t n_cells);

  // Memory that registers and logits come from and go to.
  using Pins = std::vector<std::unique_ptr<device::Pinned>>;
  void pin(const Buffer& memory, Pins& to) const;

  using Poll = DeviceStep::Poll;
  // A step begins, whose cells the cache has reserved. While it waits it calls poll, which may
  // throw.
  void begin(const StepRows& rows, const KvCache& kv, const std::vector<RopeTable>& ropes,
             const Poll& poll);
  // A register from and to the host's memory, rows `stride` floats apart.
  void upload(size_t reg, const float* from);
  void download(size_t reg, float* to);
  // Runs blocks; at most two layers of them are on the queues, or two blocks of many rows, or all
  // of few rows where a driver runs them as one. An interrupt waits for these.
  void run(std::span<const PlacedBlock* const> blocks);
  // logits[i] for the listed rows of x, padded(n_vocab) floats apart; at most kHeadRows.
  void logits(std::span<const int32_t> rows, float* logits);
  void finish();
  // All ranks that share the layers will stop at the same gather. By rank 0.
  void ask_to_stop() { gathers_.asked = true; }
  // Waits for all commands, whatever they end in.
  void drain() noexcept;

 private:
  using Marks = std::vector<std::unique_ptr<device::Event>>;
  Marks mark();
  // Ranks bring together the columns of rows of logits that each has.
  void gather_logits(int64_t n_rows, float* logits);

  const Stage& stage_;
  int owner_;  // process id
  std::vector<std::unique_ptr<MemberRun>> members_;
  Buffer staging_;
  Pins pins_;  // of staging_
  GatherMemory gathers_;
  std::optional<DeviceStep> step_;
  size_t n_runs_ = 0;  // since the step began
  Marks before_;
};

}  // namespace pyflow
