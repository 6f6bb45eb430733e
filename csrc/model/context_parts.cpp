// Steps of a context whose stage has blocks on a device.
#include <algorithm>
#include <array>
#include <cstring>

#include "core/errors.h"
#include "model/context.h"

namespace pyflow {
namespace {

// Which memory has a register as it is now, and where the host has it.
struct Where {
  uint8_t on_host = 0, on_device = 0;
  std::array<float*, kRegisters> here{};

  static uint8_t bit(size_t r) { return static_cast<uint8_t>(1 << r); }
  void change(Home home, uint8_t registers) {
    uint8_t& in = home == Home::Host ? on_host : on_device;
    uint8_t& out = home == Home::Host ? on_device : on_host;
    in |= registers;
    out &= static_cast<uint8_t>(~registers);
  }
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

void Context::run_parts(const StepRows& rows, const Input& input, const Consume& consume) {
  const DeviceRun::Poll poll = [&] {
    if (should_stop()) throw CancelledError("stopped");
  };
  Where where;
  std::vector<RopeTable> ropes;
  const auto on_host = [&](const std::function<void(Step&, Team&)>& work) {
    stage_->pool().run([&](Team& team) {
      Step s = step(team, rows);
      work(s, team);
      if (team.rank() != 0) return;
      where.here = s.registers;
      ropes = s.ropes;
    });
    if (stopped()) throw CancelledError("stopped");
  };
  const auto bring = [&](Home home, uint8_t registers) {
    for (size_t r = 0; r < kRegisters; ++r) {
      const uint8_t bit = Where::bit(r);
      if (!(registers & bit)) continue;
      if (home == Home::Device && !(where.on_device & bit)) {
        device_->upload(r, where.here[r]);
        where.on_device |= bit;
      }
      if (home == Home::Host && !(where.on_host & bit)) {
        device_->download(r, scratch_.shared(r));
        device_->finish(poll);
        where.on_host |= bit;
      } else if (home == Home::Host && where.here[r] != scratch_.shared(r)) {
        std::copy_n(where.here[r], rows.n_rows * scratch_.stride(), scratch_.shared(r));
      }
    }
  };
  try {
    on_host([&](Step& s, Team& team) { start(s, team, input); });
    where.on_host = Where::bit(0);
    device_->begin(rows, kv_, ropes);
    for (const Part& part : parts(input)) {
      bring(part.home, part.reads);
      if (part.home == Home::Host) {
        on_host([&](Step& s, Team& team) {
          take_own(s, team, part.reads);
          run_blocks(s, team, part);
        });
      } else {
        device_->run(part.blocks, poll);
      }
      where.change(part.home, part.writes);
    }
    if (stage_->head_on_device() && !input.wanted.empty()) {
      bring(Home::Device, Where::bit(0));
      device_head(input.wanted, consume, poll);
    }
    bring(Home::Host, Where::bit(0));  // for hidden()
    device_->finish(poll);
    if (!stage_->head_on_device())
      on_host([&](Step& s, Team& team) { head(s, team, input.wanted, consume); });
  } catch (...) {
    device_->drain();
    throw;
  }
}

void Context::device_head(std::span<const int32_t> wanted, const Consume& consume,
                          const DeviceRun::Poll& poll) {
  const auto n_vocab = static_cast<size_t>(stage_->spec().n_vocab);
  const auto at_once = static_cast<size_t>(scratch_.head_rows());
  for (size_t i = 0; i < wanted.size(); i += at_once) {
    const auto rows = wanted.subspan(i, std::min(at_once, wanted.size() - i));
    device_->logits(rows, scratch_.logits(), poll);
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
