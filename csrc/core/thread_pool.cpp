#include "core/thread_pool.h"

#include <sched.h>
#include <unistd.h>

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

// Returns once `a` differs from `old`.
void await(const std::atomic<uint32_t>& a, uint32_t old, int spins) {
  for (int i = 0; i < spins; ++i) {
    if (a.load(std::memory_order_acquire) != old) return;
    pause();
  }
  while (a.load(std::memory_order_acquire) == old) a.wait(old, std::memory_order_acquire);
}

}  // namespace

ThreadPool::ThreadPool(int n_threads) : n_threads_(n_threads), owner_(getpid()) {
  if (n_threads < 1 || n_threads > 1024)
    throw ResourceError("threads: expected 1 to 1024, found " + std::to_string(n_threads));
  spins_ = n_threads > usable_cores() ? kSpinsOversubscribed : kSpins;
  cursors_ = std::make_unique<Cursor[]>(2 * static_cast<size_t>(n_threads));
  try {
    for (int rank = 1; rank < n_threads; ++rank)
      threads_.emplace_back([this, rank] { worker(rank); });
  } catch (const std::system_error& e) {
    shut_down();
    throw ResourceError("threads: the system granted only " + std::to_string(threads_.size() + 1) +
                        " of " + std::to_string(n_threads) + " (" + e.what() + "); ask for fewer");
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
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  for (auto& t : threads_) t.join();
}

void ThreadPool::run(const std::function<void(Team&)>& f) {
  if (getpid() != owner_)
    throw ResourceError("threads do not survive fork(): load the model again in the child process");
  std::lock_guard turn(turn_);
  for (int i = 0; i < 2 * n_threads_; ++i) cursors_[i].next.store(0, std::memory_order_relaxed);
  job_ = &f;
  failure_ = nullptr;
  epoch_.fetch_add(1, std::memory_order_release);
  epoch_.notify_all();
  work(0);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void ThreadPool::work(int rank) {
  Team team(*this, rank, n_threads_);
  try {
    (*job_)(team);
  } catch (...) {
    std::lock_guard lock(failure_lock_);
    if (!failure_) failure_ = std::current_exception();
  }
  wait_barrier();
}

void ThreadPool::worker(int rank) {
  for (uint32_t seen = 0;; ++seen) {
    await(epoch_, seen, spins_);
    if (stop_.load(std::memory_order_relaxed)) return;
    work(rank);
  }
}

void ThreadPool::wait_barrier() {
  if (n_threads_ == 1) return;
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == static_cast<uint32_t>(n_threads_)) {
    arrived_.store(0, std::memory_order_relaxed);
    phase_.store(phase + 1, std::memory_order_release);
    phase_.notify_all();
  } else {
    await(phase_, phase, spins_);
  }
}

void Team::barrier() { pool_.wait_barrier(); }

}  // namespace pyflow
