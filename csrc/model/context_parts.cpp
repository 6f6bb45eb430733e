// The blocks of a step in parts, and steps of a context whose stage has blocks on a device.
#include <algorithm>
#include <array>
#include <cstring>

#include "core/errors.h"
#include "model/context.h"

namespace pyflow {
namespace {

// Which memories have a register as it is now, and where the host has it.
struct Where {
  explicit Where(Home n_groups) : in_(static_cast<size_t>(n_groups) + 1) {}
  std::array<float*, kRegisters> here{};

  static uint8_t bit(size_t r) { return static_cast<uint8_t>(1 << r); }
  bool has(Home home, size_t r) const { return in_[at(home)] & bit(r); }
  void add(Home home, size_t r) { in_[at(home)] |= bit(r); }
  // These are as this home has written them.
  void change(Home home, uint8_t registers) {
    for (uint8_t& in : in_) in &= static_cast<uint8_t>(~registers);
    in_[at(home)] |= registers;
  }
  // A group of devices that has it.
  Home group_with(size_t r) const {
    for (Home group = 0; at(group) < in_.size(); ++group)
      if (has(group, r)) return group;
    return kHost;
  }

 private:
  static size_t at(Home home) { return static_cast<size_t>(home + 1); }
  std::vector<uint8_t> in_;  // by home
};

// Where each thread has its own rows, it copies these registers: the first thread's x is the one
// that all find, and it changes.
void take_own(Step& s, Team& team, uint8_t registers) {
  if (!s.own_rows) return;
  for (size_t r = 0; r < kRegisters; ++r) {
    if (!(registers & Where::bit(r))) continue;
    if (s.own[r] != s.shared[r]) std::copy_n(s.shared[r], s.n_rows * s.stride, s.own[r]);
    s.registers[r] = s.own[r];
  }
  team.barrier();
}

}  // namespace

const std::vector<Context::Part>& Context::parts(const Input& input) {
  if (parts_begin_ == input.first_layer && parts_end_ == end_layer(input)) return parts_;
  parts_.clear();
  for (int64_t i = input.first_layer; i < end_layer(input); ++i) {
    if (!runs_layer_[static_cast<size_t>(i)]) continue;
    for (const PlacedBlock& at : stage_->layers()[static_cast<size_t>(i)]) {
      if (parts_.empty() || parts_.back().home != at.home) parts_.push_back({at.home, {}});
      Part& part = parts_.back();
      part.blocks.push_back(&at);
      part.reads |= at.reads & ~part.writes;
      part.writes |= at.writes;
    }
  }
  parts_begin_ = input.first_layer;
  parts_end_ = end_layer(input);
  return parts_;
}

bool Context::stops_alone() {
  if (!config_.link) return true;
  if (config_.link->number() == 0)
    for (const auto& each : devices_) each->ask_to_stop();
  return false;
}

void Context::run_parts(const StepRows& rows, const Input& input, const Consume& consume) {
  const DeviceRun::Poll poll = [&] {
    if (should_stop() && stops_alone()) throw CancelledError("stopped");
  };
  Where where(stage_->n_groups());
  std::vector<RopeTable> ropes;
  const auto device = [&](Home group) -> DeviceRun& {
    return *devices_[static_cast<size_t>(group)];
  };
  const auto on_host = [&](uint8_t writes, const std::function<void(Step&, Team&)>& work) {
    stage_->pool().run([&](Team& team) {
      Step s = step(team, rows);
      work(s, team);
      if (team.rank() != 0) return;
      for (size_t r = 0; r < kRegisters; ++r)
        if (writes & Where::bit(r)) where.here[r] = s.registers[r];
      ropes = s.ropes;
    });
    if (stopped()) throw CancelledError("stopped");
  };
  // From where a register is to where it is read; from one group to another by way of the host.
  const auto bring = [&](Home home, uint8_t registers) {
    for (size_t r = 0; r < kRegisters; ++r) {
      if (!(registers & Where::bit(r)) || (home != kHost && where.has(home, r))) continue;
      if (!where.has(kHost, r)) {
        DeviceRun& from = device(where.group_with(r));
        from.download(r, scratch_.shared(r));
        from.finish();
        where.add(kHost, r);
        where.here[r] = scratch_.shared(r);
      }
      if (home != kHost) {
        device(home).upload(r, where.here[r]);
        where.add(home, r);
      } else if (where.here[r] != scratch_.shared(r)) {
        std::copy_n(where.here[r], rows.n_rows * scratch_.stride(), scratch_.shared(r));
      }
    }
  };
  const Home head_home = stage_->head_home();
  try {
    on_host(Where::bit(0), [&](Step& s, Team& team) { start(s, team, input); });
    where.change(kHost, Where::bit(0));
    for (const auto& each : devices_) each->begin(rows, kv_, ropes, poll);
    for (const Part& part : parts(input)) {
      bring(part.home, part.reads);
      if (part.home == kHost) {
        on_host(part.writes, [&](Step& s, Team& team) {
          take_own(s, team, part.reads);
          run_blocks(s, team, part);
        });
      } else {
        device(part.home).run(part.blocks);
      }
      where.change(part.home, part.writes);
    }
    if (head_home != kHost && !input.wanted.empty()) {
      bring(head_home, Where::bit(0));
      device_head(input.wanted, consume);
    }
    bring(kHost, Where::bit(0));  // for hidden()
    for (const auto& each : devices_) each->finish();
    if (head_home == kHost) on_host(0, [&](Step& s, Team& team) { head(s, team, input, consume); });
  } catch (...) {
    for (const auto& each : devices_) each->drain();
    throw;
  }
}

void Context::device_head(std::span<const int32_t> wanted, const Consume& consume) {
  DeviceRun& device = *devices_[static_cast<size_t>(stage_->head_home())];
  const auto n_vocab = static_cast<size_t>(stage_->spec().n_vocab);
  const auto at_once = static_cast<size_t>(scratch_.head_rows());
  for (size_t i = 0; i < wanted.size(); i += at_once) {
    const auto rows = wanted.subspan(i, std::min(at_once, wanted.size() - i));
    device.logits(rows, scratch_.logits());
    stage_->pool().run([&](Team& team) {
      team.for_each(std::ssize(rows), 1, [&](int64_t begin, int64_t end) {
        for (int64_t j = begin; j < end; ++j)
          consume(static_cast<int64_t>(i) + j,
                  {scratch_.logits() + j * scratch_.head_stride(), n_vocab});
      });
    });
  }
}

}  // namespace pyflow
