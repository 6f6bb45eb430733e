// Persistent workers for one parallel region at a time.
//
// run(f) calls f(team) on every thread, the caller being thread 0. Inside, the team meets at
// barrier() and shares loops by for_each(). Workers spin briefly between regions, then sleep.
// Where other processes take cores away, a team has fewer threads for a while (team_size.h). On
// machines with several memory nodes threads may keep to theirs (placement.h).
// Results never depend on which thread took which item, nor on how many there are (contract C1);
// only time does.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/placement.h"
#include "core/team_size.h"

namespace pyflow {

class ThreadPool;

// Far more than machines have; a number beyond it is a slip.
inline constexpr int kMaxThreads = 1024;

// Where the share of a thread begins, of pieces that a team of `size` shares.
inline int64_t share_begin(int64_t pieces, int rank, int size) { return pieces * rank / size; }

class Team {
 public:
  int rank() const { return rank_; }
  int size() const { return size_; }
  // Which copy of the weights is near this thread (placement.h).
  size_t copy() const { return copy_; }

  // All threads arrive before any leaves.
  void barrier();

  // Calls body(begin, end) over [0, n) in pieces of `grain`: each thread first takes its own
  // contiguous share, then helps the others with theirs, those of its memory node first. Every
  // thread must make the same sequence of for_each calls. Ends with a barrier.
  template <class Body>
  void for_each(int64_t n, int64_t grain, Body&& body);

 private:
  friend class ThreadPool;
  Team(ThreadPool& pool, int rank, int size);
  // Whose share this thread takes from after `hop` others.
  int owner(int hop) const {
    const int n_near = near_end_ - near_begin_;
    return hop < n_near ? near_begin_ + (rank_ - near_begin_ + hop) % n_near
                        : (near_begin_ + hop) % size_;
  }
  ThreadPool& pool_;
  int rank_;
  int size_;
  int near_begin_, near_end_;  // the threads of its node
  size_t copy_;
  uint32_t loop_ = 0;
};

class ThreadPool {
 public:
  // Throws ResourceError unless 1 <= n_threads <= 1024 and the system grants them, ShapeError for a
  // placement of another number of threads. adapts: teams may be smaller than the pool.
  explicit ThreadPool(int n_threads, bool adapts = true,
                      std::shared_ptr<const Placement> placement = std::make_shared<Placement>());
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return n_threads_; }
  const Placement& placement() const { return *placement_; }

  // One region at a time: callers from several threads take turns. f must not throw on workers or
  // leave a barrier unmet; an exception thrown by all threads alike is rethrown here.
  void run(const std::function<void(Team&)>& f);

 private:
  friend class Team;
  struct alignas(64) Cursor {
    std::atomic<int64_t> next{0};
  };
  struct alignas(64) Member {
    std::atomic<uint32_t> region{0};   // how many regions this thread was called to
    int64_t cpu_ns = 0;                // of the last region
    size_t node = 0;                   // whose CPUs it keeps to, of the placement's
    int near_begin = 0, near_end = 0;  // the threads that do so
  };
  void seat_members();
  void worker(int rank);
  void work(int rank);
  void call(int rank);
  void wait_barrier();
  void shut_down();
  Cursor& cursor(uint32_t loop, int rank) {
    return cursors_[(loop & 1) * static_cast<size_t>(n_threads_) + static_cast<size_t>(rank)];
  }

  int n_threads_;
  bool adapts_;
  int owner_;  // process id: threads do not survive fork()
  int n_cores_;
  std::shared_ptr<const Placement> placement_;
  std::vector<std::thread> threads_;
  std::unique_ptr<Cursor[]> cursors_;
  std::unique_ptr<Member[]> members_;
  std::mutex turn_;
  TeamSize team_size_;
  // Of the region that runs.
  int n_team_;
  int spins_;
  const std::function<void(Team&)>* job_ = nullptr;
  std::exception_ptr failure_;
  std::mutex failure_lock_;
  alignas(64) std::atomic<uint32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  std::atomic<bool> stop_{false};
};

template <class Body>
void Team::for_each(int64_t n, int64_t grain, Body&& body) {
  if (size_ == 1) {
    if (n > 0) body(int64_t{0}, n);
    return;
  }
  const uint32_t loop = loop_++;
  // The other parity's cursors were last read before the barrier that ended the previous loop.
  pool_.cursor(loop + 1, rank_).next.store(0, std::memory_order_relaxed);
  const int64_t pieces = (n + grain - 1) / grain;
  for (int hop = 0; hop < size_; ++hop) {
    const int other = owner(hop);
    const int64_t first = share_begin(pieces, other, size_),
                  last = share_begin(pieces, other + 1, size_);
    auto& next = pool_.cursor(loop, other).next;
    for (;;) {
      const int64_t piece = first + next.fetch_add(1, std::memory_order_relaxed);
      if (piece >= last) break;
      const int64_t begin = piece * grain;
      body(begin, begin + grain < n ? begin + grain : n);
    }
  }
  barrier();
}

}  // namespace pyflow
