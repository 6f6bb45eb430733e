#include "device/probe.h"

#include <algorithm>
#include <chrono>

#include "device/selftest.h"

namespace pyflow::device {
namespace {

// More than the caches of any GPU; on CPUs, which take their time, a quarter of it.
constexpr uint64_t kGpuBytes = uint64_t{1} << 29, kCpuBytes = uint64_t{1} << 27;
constexpr int64_t kGroupsPerUnit = 32;
constexpr int kLaunches = 200;

template <class Run>
double best_seconds(int repeats, Queue& queue, const std::function<void()>& poll, Run run) {
  using Clock = std::chrono::steady_clock;
  double best = 0.0;
  for (int i = 0; i <= repeats; ++i) {
    const auto start = Clock::now();
    run();
    queue.mark()->wait(poll);
    const double seconds = std::chrono::duration<double>(Clock::now() - start).count();
    if (i == 1 || (i > 1 && seconds < best)) best = seconds;  // the first one only warms up
  }
  return best;
}

}  // namespace

std::string find_fault(Compiled& compiled, const std::vector<DType>& formats, const Poll& poll) {
  struct Found {
    std::string fault, units_fault;
  };
  const auto found = std::make_shared<Found>();
  run_apart(
      [=, mine = compiled] {
        Ops ops(mine);
        found->fault = first_fault(ops, formats);
        if (found->fault.empty() && mine.matrix_units)
          found->units_fault = first_fault_of_units(ops, formats);
      },
      poll);
  compiled.units_fault = found->units_fault;
  if (!found->units_fault.empty()) compiled.matrix_units = false;
  return found->fault;
}

Speed measure(Ops& ops, int repeats, const std::function<void()>& poll) {
  const DeviceInfo& info = ops.device().info();
  const uint64_t most = info.kind == Kind::Gpu ? kGpuBytes : kCpuBytes;
  const uint64_t nbytes = std::min({most, info.largest_buffer, info.memory / 4}) / 64 * 64;
  const int64_t groups = kGroupsPerUnit * std::max<int64_t>(1, info.compute_units);
  const auto queue = ops.device().make_queue();
  const auto from = ops.device().allocate(nbytes, "the measurement"),
             sums = ops.device().allocate(static_cast<size_t>(groups * 64) * sizeof(uint32_t),
                                          "the measurement");
  queue->fill(*from, 0, nbytes, 1);
  Speed speed;
  speed.read_bandwidth =
      static_cast<double>(nbytes) / best_seconds(repeats, *queue, poll, [&] {
        ops.read_bytes(*queue, *from, static_cast<int64_t>(nbytes), *sums, groups);
      });
  speed.launch_seconds = best_seconds(repeats, *queue, poll,
                                      [&] {
                                        for (int i = 0; i < kLaunches; ++i)
                                          ops.nothing(*queue, *sums);
                                      }) /
                         kLaunches;
  return speed;
}

}  // namespace pyflow::device
