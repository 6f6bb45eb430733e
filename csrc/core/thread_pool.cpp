#include "core/thread_pool.h"

#include <sched.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <system_error>

#include "core/errors.h"

namespace pyflow {
namespace {

// About 50 us of pauses: longer than the gaps between the loops of a step, shorter than a time
// slice.
constexpr int kSpins = 2000;
// With more threads than cores a spinner keeps the one it waits for from running.
constexpr int kSpinsOversubscribed = 20;

int usable_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int64_t nanoseconds(clockid_t clock) {
  timespec t{};
  clock_gettime(clock, &t);
  return int64_t{1'000'000'000} * t.tv_sec + t.tv_nsec;
}

// Returns once `a` differs from `old`.
void await(const std::atomic<uint32_t>& a, uint32_t old, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (a.load(std::memory_order_acquire) != old) return;
    pause();
  }
  while (a.load(std::memory_order_acquire) == old) a.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int n_threads, bool adapts, std::shared_ptr<const Placement> placement)
    : n_threads_(n_threads),
      adapts_(adapts && n_threads > 1),
      owner_(getpid()),
      n_cores_(usable_cores()),
      placement_(std::move(placement)),
      team_size_(n_threads),
      n_team_(n_threads),
      spins_(kSpins) {
  if (n_threads < 1 || n_threads > kMaxThreads)
    throw ShapeError("n_threads: expected 1 to " + std::to_string(kMaxThreads) + ", found " +
                     std::to_string(n_threads));
  cursors_ = std::make_unique<Cursor[]>(2 * static_cast<size_t>(n_threads));
  members_ = std::make_unique<Member[]>(static_cast<size_t>(n_threads));
  seat_members();
  try {
    for (int rank = 1; rank < n_threads; ++rank)
      threads_.emplace_back([this, rank] { worker(rank); });
  } catch (const std::system_error& e) {
    shut_down();
    throw ResourceError("threads: the system granted only " + std::to_string(threads_.size() + 1) +
                        " of " + std::to_string(n_threads) + " (" + e.what() + "); ask for fewer");
  }
}

void ThreadPool::seat_members() {
  const auto& nodes = placement_->nodes();
  if (!nodes.empty() && placement_->n_threads() != n_threads_)
    throw ShapeError("numa: a placement of " + std::to_string(placement_->n_threads()) +
                     " threads, for a pool of " + std::to_string(n_threads_));
  for (int rank = 0; rank < n_threads_; ++rank)
    members_[static_cast<size_t>(rank)].near_end = n_threads_;
  if (!placement_->holds_threads()) return;
  int begin = 0;
  for (size_t node = 0; node < nodes.size(); ++node) {
    const int end = begin + nodes[node].n_threads;
    for (int rank = begin; rank < end; ++rank) {
      Member& member = members_[static_cast<size_t>(rank)];
      member.node = node;
      member.near_begin = begin;
      member.near_end = end;
    }
    begin = end;
  }
}

ThreadPool::~ThreadPool() {
  if (getpid() != owner_) {  // in a forked child the threads do not exist
    for (auto& t : threads_) t.detach();
    return;
  }
  shut_down();
}

void ThreadPool::shut_down() {
  stop_.store(true, std::memory_order_relaxed);
  for (int rank = 1; rank < n_threads_; ++rank) call(rank);
  for (auto& t : threads_) t.join();
}

void ThreadPool::call(int rank) {
  auto& region = members_[static_cast<size_t>(rank)].region;
  region.fetch_add(1, std::memory_order_release);
  region.notify_one();
}

void ThreadPool::run(const std::function<void(Team&)>& f) {
  if (getpid() != owner_)
    throw ResourceError("threads do not survive fork(): load the model again in the child process");
  std::lock_guard turn(turn_);
  const Hold hold(*placement_, members_[0].node);
  for (int i = 0; i < 2 * n_threads_; ++i) cursors_[i].next.store(0, std::memory_order_relaxed);
  job_ = &f;
  failure_ = nullptr;
  n_team_ = team_size_.now();
  spins_ = n_team_ > n_cores_ ? kSpinsOversubscribed : kSpins;
  const int64_t begin = adapts_ ? nanoseconds(CLOCK_MONOTONIC) : 0;
  for (int rank = 1; rank < n_team_; ++rank) call(rank);
  work(0);
  if (adapts_) {
    int64_t cpu_ns = 0;
    for (int rank = 0; rank < n_team_; ++rank) cpu_ns += members_[static_cast<size_t>(rank)].cpu_ns;
    team_size_.observe(nanoseconds(CLOCK_MONOTONIC) - begin, cpu_ns);
  }
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::work(int rank) {
  Team team(*this, rank, n_team_);
  const int64_t begin = adapts_ ? nanoseconds(CLOCK_THREAD_CPUTIME_ID) : 0;
  try {
    (*job_)(team);
  } catch (...) {
    std::lock_guard lock(failure_lock_);
    if (!failure_) failure_ = std::current_exception();
  }
  if (adapts_)
    members_[static_cast<size_t>(rank)].cpu_ns = nanoseconds(CLOCK_THREAD_CPUTIME_ID) - begin;
  wait_barrier();
}

void ThreadPool::worker(int rank) {
  const Hold hold(*placement_, members_[static_cast<size_t>(rank)].node);
  for (uint32_t seen = 0;; ++seen) {
    await(members_[static_cast<size_t>(rank)].region, seen, kSpins);
    if (stop_.load(std::memory_order_relaxed)) return;
    work(rank);
  }
}

void ThreadPool::wait_barrier() {
  if (n_team_ == 1) return;
  const auto n_team = static_cast<uint32_t>(n_team_);
  const int spins = spins_;
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == n_team) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    phase_.notify_all();
  } else {
    await(phase_, phase, spins);
  }
}

Team::Team(ThreadPool& pool, int rank, int size) : pool_(pool), rank_(rank), size_(size) {
  const auto& member = pool.members_[static_cast<size_t>(rank)];
  near_begin_ = member.near_begin;
  near_end_ = std::min(member.near_end, size);
  copy_ = pool.placement_->n_copies() > 1 ? member.node : 0;
}

void Team::barrier() { pool_.wait_barrier(); }

}  // namespace pyflow
