#include "model/device/device_run.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "kv/storage/split_store.h"
#include "model/stage.h"

namespace pyflow {
namespace {

constexpr int64_t kManyRows = 32;  // that make blocks long enough to wait for each

// Its heads of a layer.
LayerKv share_of(LayerKv kv, const Membership& own) {
  kv.n_kv_heads = Cut{kv.n_kv_heads, 1}.rows_of(own.number, own.of).size();
  return kv;
}

}  // namespace

size_t DeviceRun::staging_nbytes(const Stage& stage, Home group, const DeviceRunSizes& of) {
  return 2 * sizeof(float) * static_cast<size_t>(MemberRun::packed_floats(stage, group, of.cells));
}

std::vector<size_t> DeviceRun::nbytes(const Stage& stage, Home group, const DeviceRunSizes& of,
                                      const KvConfig& config) {
  std::vector<size_t> all;
  const int64_t n = stage.members(group);
  for (int64_t i = 0; i < n; ++i) {
    KvConfig here = config;
    for (size_t layer = 0; layer < here.layers.size(); ++layer) {
      here.remote[layer] = stage.cell_homes()[layer] == group;
      if (here.remote[layer])
        here.layers[layer] = share_of(here.layers[layer], stage.own(group, i));
    }
    all.push_back(MemberRun::nbytes(stage, group, of) + KvCache::remote_nbytes(here));
  }
  return all;
}

DeviceRun::DeviceRun(const Stage& stage, Home group, const DeviceRunSizes& of)
    : stage_(stage), owner_(getpid()), staging_(staging_nbytes(stage, group, of), "scratch") {
  for (const auto& device : stage.devices(group))
    members_.push_back(std::make_unique<MemberRun>(stage, *device, of));
  const int64_t n = MemberRun::packed_floats(stage, group, of.cells);
  if (n > 0) pin(staging_, pins_);
  gathers_ = {{staging_.as<float>(), staging_.as<float>() + n}, n, of.ranks};
}

std::unique_ptr<kv::RemoteCells> DeviceRun::make_cells(size_t layer, const LayerKv& kv,
                                                       CacheType type, int64_t n_cells) {
  std::vector<kv::SplitStore::Part> parts;
  for (const auto& member : members_) {
    const LayerKv own = share_of(kv, member->own());
    parts.push_back({own.n_kv_heads, member->make_cells(layer, own, type, n_cells)});
  }
  if (parts.size() == 1) return std::move(parts[0].cells);
  return std::make_unique<kv::SplitStore>(kv, type, std::move(parts));
}

void DeviceRun::pin(const Buffer& memory, Pins& to) const {
  for (const auto& member : members_)
    if (auto pinned = member->device().pin(memory.data(), memory.size()))
      to.push_back(std::move(pinned));
}

void DeviceRun::begin(const StepRows& s, const KvCache& kv, const std::vector<RopeTable>& ropes,
                      const Poll& poll) {
  before_.clear();
  n_runs_ = 0;
  gathers_.asked = false;
  std::vector<DeviceMember> all;
  for (const auto& member : members_) all.push_back(member->begin(s, kv, ropes));
  step_.emplace(std::move(all), gathers_, poll);
}

void DeviceRun::upload(size_t reg, const float* from) {
  for (const auto& member : members_) member->upload(reg, from, step_->n_rows);
}

void DeviceRun::download(size_t reg, float* to) { members_[0]->download(reg, to, step_->n_rows); }

DeviceRun::Marks DeviceRun::mark() {
  Marks marks;
  for (const auto& member : members_) marks.push_back(member->queue().mark());
  return marks;
}

void DeviceRun::run(std::span<const PlacedBlock* const> blocks) {
  const bool few = step_->n_rows < kManyRows;
  bool as_one = few;
  if (few)
    for (const auto& member : members_) as_one &= member->queue().hold(n_runs_);
  ++n_runs_;
  for (size_t i = 0; i < blocks.size(); ++i) {
    blocks[i]->block->record(*step_);
    step_->end_block();
    const bool is_last = i + 1 == blocks.size();
    if (!is_last && few && (as_one || !blocks[i + 1]->first)) continue;
    if (is_last)
      for (const auto& member : members_) member->queue().release();
    Marks marks = mark();
    step_->poll()();
    for (const auto& each : before_) each->wait(step_->poll());
    before_ = std::move(marks);
  }
}

void DeviceRun::logits(std::span<const int32_t> rows, float* logits) {
  const int64_t n_vocab = stage_.spec().n_vocab, stride = padded(n_vocab);
  DeviceStep::Rows normed, out;
  for (const auto& member : members_) {
    normed.push_back(member->normed());
    out.push_back(member->logits());
  }
  stage_.record_logits(*step_, rows, normed, out);
  step_->each([&](DeviceMember& m) {
    const Share own = m.rows_of(Cut::tiles(n_vocab));
    for (int64_t i = 0; i < std::ssize(rows); ++i) {
      const auto at = static_cast<size_t>(i * stride + own.begin);
      m.queue.download(*out[m.number].buffer, at * sizeof(float), logits + at,
                       static_cast<size_t>(own.size()) * sizeof(float));
    }
  });
  finish();
  if (gathers_.ranks) gather_logits(std::ssize(rows), logits);
}

void DeviceRun::gather_logits(int64_t n_rows, float* logits) {
  const int64_t n_vocab = stage_.spec().n_vocab, stride = padded(n_vocab),
                of = gathers_.ranks->size();
  const Cut cut = Cut::tiles(n_vocab);
  std::vector<float> all(static_cast<size_t>(n_rows * n_vocab));
  std::vector<int64_t> n_floats;
  // copy(where a member's columns of a row lie here, and among all, how many)
  const auto each = [&](int64_t member, const auto& copy) {
    const Share its = cut.rows_of(member, of);
    for (int64_t i = 0; i < n_rows; ++i)
      copy(logits + i * stride + its.begin, all.data() + its.begin * n_rows + i * its.size(),
           its.size());
  };
  for (int64_t i = 0; i < of; ++i) n_floats.push_back(n_rows * cut.rows_of(i, of).size());
  const int64_t own = gathers_.ranks->number();
  each(own, [](const float* here, float* there, int64_t n) { std::copy_n(here, n, there); });
  gathers_.exchange(all.data(), n_floats);
  for (int64_t i = 0; i < of; ++i)
    if (i != own)
      each(i, [](float* here, const float* there, int64_t n) { std::copy_n(there, n, here); });
}

void DeviceRun::finish() {
  before_.clear();
  for (const auto& each : mark()) each->wait(step_->poll());
}

void DeviceRun::drain() noexcept {
  before_.clear();
  if (getpid() != owner_) return;  // the driver's threads do not survive fork()
  for (const auto& member : members_) {
    try {
      member->queue().finish();
    } catch (...) {
    }
  }
}

}  // namespace pyflow
