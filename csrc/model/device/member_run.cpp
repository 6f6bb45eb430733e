#include "model/device/member_run.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "model/scratch.h"
#include "model/stage.h"

namespace pyflow {
namespace {

constexpr int64_t kFloat = sizeof(float);
constexpr int64_t kMostBlocks = 65'535;  // groups along an axis
constexpr int64_t kAttentionRows = 8;    // rows that attend in one command, at the longest text
constexpr int64_t kGatheredRows = 64;    // rows that are gathered at once

// Bytes of a context's memory, by what they are for.
struct Sizes {
  int64_t reg, temp, acts, pairs, attention, packed, head, logits;

  Sizes(const Stage& stage, Home group, const DeviceRunSizes& of) {
    const ScratchNeeds needs = stage.needs(group, of.cells);
    const int64_t stride = padded(stage.spec().n_embd), n = of.n_batch;
    const int64_t head_rows = stage.head_home() == group ? std::min(kHeadRows, n) : 0;
    const int64_t acts_rows = n * needs.act_blocks_per_row * static_cast<int64_t>(sizeof(ActBlock));
    reg = n * stride * kFloat;
    temp = n * needs.floats_per_row * kFloat;
    acts = acts_rows;
    pairs = stage.device_fine_inputs(group) ? 2 * acts_rows : 0;
    attention = kAttentionRows * needs.partial_floats * (of.n_ctx / kLogicalBlock + 2) * kFloat;
    packed = MemberRun::packed_floats(stage, group, of.cells) * kFloat;
    head = head_rows * stride * kFloat;
    logits = head_rows * padded(stage.spec().n_vocab) * kFloat;
  }
};

}  // namespace

int64_t MemberRun::packed_floats(const Stage& stage, Home group, CacheType cells) {
  if (stage.own(group, 0).of == 1) return 0;
  const int64_t widest =
      std::max(stage.needs(group, cells).floats_per_row, padded(stage.spec().n_embd));
  return kGatheredRows * widest;
}

size_t MemberRun::nbytes(const Stage& stage, Home group, const DeviceRunSizes& of) {
  const Sizes sizes(stage, group, of);
  int64_t angles = 0;
  for (const RopeSpec& rope : stage.spec().ropes)
    angles += of.n_batch * 2 * static_cast<int64_t>(rope.pairs()) * kFloat;
  return static_cast<size_t>(kRegisters * sizes.reg + sizes.temp + sizes.acts + sizes.pairs +
                             sizes.attention + sizes.packed + sizes.head + sizes.logits + angles);
}

MemberRun::MemberRun(const Stage& stage, const DeviceStage& device, const DeviceRunSizes& of)
    : device_(device),
      ops_(device_.compiled()),
      queue_(device_.device().make_queue()),
      stride_(padded(stage.spec().n_embd)),
      n_vocab_(stage.spec().n_vocab),
      stores_(stage.kv_layers().size()) {
  const Home group = device_.group();
  const Sizes sizes(stage, group, of);
  row_partials_ = static_cast<size_t>(stage.needs(group, of.cells).partial_floats * kFloat);
  const auto allocate = [&](int64_t nbytes) {
    return device_.device().allocate(static_cast<size_t>(std::max<int64_t>(nbytes, kFloat)),
                                     "scratch");
  };
  for (Buffer& reg : registers_) reg = allocate(sizes.reg);
  temp_ = allocate(sizes.temp);
  acts_ = allocate(sizes.acts);
  pairs_ = allocate(sizes.pairs);
  attention_ = allocate(sizes.attention);
  packed_ = allocate(sizes.packed);
  head_ = allocate(sizes.head);
  logits_ = allocate(sizes.logits);
  for (const RopeSpec& rope : stage.spec().ropes)
    ropes_.push_back(allocate(of.n_batch * 2 * static_cast<int64_t>(rope.pairs()) * kFloat));
}

std::unique_ptr<kv::RemoteCells> MemberRun::make_cells(size_t layer, const LayerKv& kv,
                                                       CacheType type, int64_t n_cells) {
  auto store = std::make_unique<kv::DeviceStore>(kv, type, n_cells, ops_, *queue_);
  stores_[layer] = store.get();
  return store;
}

void MemberRun::send(Buffer& to, const void* from, size_t nbytes, const char* what) {
  if (!to || to->nbytes() < nbytes)
    to = device_.device().allocate(std::max<size_t>(2 * nbytes, 1024), what);
  queue_->upload(from, *to, 0, nbytes);
}

// Positions may have gaps, and then reach further than cells.
void MemberRun::make_room(int64_t n_blocks) {
  if (n_blocks > kMostBlocks)
    throw ShapeError("positions: a row sees some that are " +
                     std::to_string(n_blocks * kLogicalBlock) + " apart; a device takes " +
                     std::to_string(kMostBlocks * kLogicalBlock) + " at most");
  const auto nbytes = static_cast<size_t>(n_blocks) * row_partials_;
  if (nbytes > attention_->nbytes()) attention_ = device_.device().allocate(nbytes, "scratch");
}

DeviceMember MemberRun::begin(const StepRows& s, const KvCache& kv,
                              const std::vector<RopeTable>& ropes) {
  const auto first = static_cast<size_t>(s.first_row), n = static_cast<size_t>(s.n_rows);
  std::vector<DeviceLayer> layers(stores_.size());
  seen_.resize(kv.groups().size());
  std::vector<uint8_t> sent(seen_.size());
  for (size_t layer = 0; layer < stores_.size(); ++layer) {
    if (!stores_[layer]) continue;
    const size_t group = kv.group_of(layer);
    Seen& seen = seen_[group];
    if (!std::exchange(sent[group], 1)) {
      const auto slots = kv.slots(layer).subspan(first, n);
      seen.table = device::view_table(kv.views(layer).subspan(first, n));
      make_room(seen.table.most_blocks);
      send(seen.slots, slots.data(), slots.size_bytes(), "slots");
      send(seen.views, seen.table.views.data(), seen.table.views.size() * sizeof(device::View),
           "views");
      send(seen.runs, seen.table.runs.data(), seen.table.runs.size() * sizeof(device::ViewRun),
           "runs");
    }
    layers[layer] = {stores_[layer]->cells(), seen.slots.get(),       seen.views.get(),
                     seen.runs.get(),         seen.table.most_blocks, seen.table.most_spans};
  }
  const DeviceMemory memory = {temp_.get(), acts_.get(), pairs_.get(), attention_.get(),
                               packed_.get()};
  DeviceMember member(device_.own(), device_.number(), device_.weights(), ops_, *queue_, memory,
                      s.n_rows);
  member.layers = std::move(layers);
  for (size_t r = 0; r < kRegisters; ++r) member.registers[r] = {registers_[r].get(), 0, stride_};
  for (size_t i = 0; i < ropes.size(); ++i) {
    const RopeTable& rope = ropes[i];
    const int64_t stride = 2 * rope.n_pairs;
    queue_->upload(rope.values, *ropes_[i], 0, static_cast<size_t>(s.n_rows * stride * kFloat));
    member.ropes.push_back({{ropes_[i].get(), 0, stride}, rope.n_pairs, rope.interleaved});
  }
  return member;
}

void MemberRun::upload(size_t reg, const float* from, int64_t n) {
  queue_->upload(from, *registers_[reg], 0, static_cast<size_t>(n * stride_ * kFloat));
}

void MemberRun::download(size_t reg, float* to, int64_t n) {
  queue_->download(*registers_[reg], 0, to, static_cast<size_t>(n * stride_ * kFloat));
}

}  // namespace pyflow
