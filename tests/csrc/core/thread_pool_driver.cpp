// Drives the thread pool hard enough for ThreadSanitizer to see a missing edge: items are plain
// memory, written by whichever thread got them and read by another one after the barrier.
//
// usage: thread_pool_driver PROPERTY; exit code 0 when it holds (test_thread_pool.py lists them).
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "core/errors.h"
#include "core/placement.h"
#include "core/team_size.h"
#include "core/thread_pool.h"

namespace {

using pyflow::Numa;
using pyflow::NumaNode;
using pyflow::Placement;
using pyflow::Team;
using pyflow::TeamSize;
using pyflow::ThreadPool;

void check(bool ok, const std::string& what) {
  if (ok) return;
  std::fprintf(stderr, "broken: %s\n", what.c_str());
  std::exit(1);
}

// Every item is visited exactly once, and what a thread wrote is seen by all after the loop.
void visits(ThreadPool& pool, int64_t n, int64_t grain, int n_loops) {
  std::vector<int32_t> hits(static_cast<size_t>(n), 0);
  pool.run([&](Team& team) {
    for (int loop = 0; loop < n_loops; ++loop) {
      team.for_each(n, grain, [&](int64_t begin, int64_t end) {
        check(0 <= begin && begin < end && end <= n, "a piece lies inside the range");
        for (int64_t i = begin; i < end; ++i) hits[static_cast<size_t>(i)] += 1;
      });
      // Only reads until the next loop's barrier: each thread looks at all items.
      for (const int32_t h : hits) check(h == loop + 1, "an item is visited once in each loop");
      team.barrier();
    }
  });
}

void loops_visit_every_item_once() {
  for (int n_threads : {1, 2, 3, 4}) {
    ThreadPool pool(n_threads, false);
    // Odd and even numbers of loops: a region must not inherit the cursors of the one before.
    for (int round = 0; round < 25; ++round)
      for (int64_t n : {0, 1, 3, 64, 257})
        for (int64_t grain : {1, 7, 300}) visits(pool, n, grain, 1 + round % 3);
  }
}

void idle_threads_take_over_the_share_of_a_busy_one() {
  for (int n_threads : {2, 4}) {
    ThreadPool pool(n_threads, false);
    constexpr int64_t kItems = 64;
    for (int round = 0; round < 50; ++round) {
      std::atomic<int64_t> done{0};
      pool.run([&](Team& team) {
        team.for_each(kItems, 1, [&](int64_t begin, int64_t) {
          // The first item ends last: without help the rest of its owner's share never would.
          while (begin == 0 && done.load() < kItems - 1) std::this_thread::yield();
          done.fetch_add(1);
        });
      });
      check(done.load() == kItems, "all items are done");
    }
  }
}

// Two threads on each of two memory nodes, which may both be the only one that there is.
std::shared_ptr<const Placement> two_nodes() {
  return std::make_shared<Placement>(Numa::Local,
                                     std::vector<NumaNode>{{0, {0, 1}, 2}, {0, {0, 1, 2, 3}, 2}});
}

void idle_threads_help_their_own_node_first() {
  const std::vector<std::vector<int64_t>> orders = {
      {0, 1, 2, 3}, {1, 0, 2, 3}, {2, 3, 0, 1}, {3, 2, 0, 1}};
  ThreadPool pool(4, false, two_nodes());
  constexpr int64_t kItems = 64, kShare = kItems / 4;
  for (int round = 0; round < 40; ++round) {
    const int helper = round % 4;
    std::atomic<int64_t> done{0};
    std::vector<int64_t> order;  // of the shares that it takes from
    pool.run([&](Team& team) {
      team.for_each(kItems, 1, [&](int64_t begin, int64_t) {
        // The others stay in the first item that they get.
        while (team.rank() != helper && done.load() < kItems - 3) std::this_thread::yield();
        if (team.rank() == helper && (order.empty() || order.back() != begin / kShare))
          order.push_back(begin / kShare);
        done.fetch_add(1);
      });
    });
    check(done.load() == kItems, "all items are done");
    check(order == orders[static_cast<size_t>(helper)], "own share, own node, other nodes");
  }
}

void threads_keep_to_their_node_during_a_region() {
  cpu_set_t before, after;
  sched_getaffinity(0, sizeof before, &before);
  ThreadPool pool(2, false,
                  std::make_shared<Placement>(Numa::Mirror,
                                              std::vector<NumaNode>{{0, {0}, 1}, {0, {0, 1}, 1}}));
  std::vector<int> cpus(2), n_cpus(2);
  pool.run([&](Team& team) {
    const auto rank = static_cast<size_t>(team.rank());
    check(team.copy() == rank, "a thread reads the copy of its node");
    cpu_set_t set;
    sched_getaffinity(0, sizeof set, &set);
    n_cpus[rank] = CPU_COUNT(&set);
    cpus[rank] = sched_getcpu();
  });
  if (pool.placement().refusals().empty())
    check(n_cpus[0] == 1 && cpus[0] == 0, "the caller is on its node");
  sched_getaffinity(0, sizeof after, &after);
  check(CPU_EQUAL(&before, &after), "the caller is free again");
  ThreadPool nowhere(
      2, false,
      std::make_shared<Placement>(Numa::Local, std::vector<NumaNode>{{0, {}, 1}, {0, {}, 1}}));
  visits(nowhere, 64, 1, 3);
  check(nowhere.placement().refusals() ==
            std::vector<std::string>{"threads on the CPUs of node 0: Invalid argument"},
        "a refusal is told once");
}

void barriers_order_plain_memory() {
  for (int n_threads : {2, 4}) {
    ThreadPool pool(n_threads, false);
    std::vector<int> slots(static_cast<size_t>(n_threads), 0);
    pool.run([&](Team& team) {
      const auto mine = static_cast<size_t>(team.rank());
      const size_t next = (mine + 1) % slots.size();
      for (int step = 1; step <= 2000; ++step) {
        slots[mine] = step;
        team.barrier();
        check(slots[next] == step, "a neighbour's write is seen after the barrier");
        team.barrier();
      }
    });
  }
}

void many_short_regions_run_on_all_threads() {
  for (int n_threads : {1, 2, 4}) {
    ThreadPool pool(n_threads, false);
    std::vector<int> runs(static_cast<size_t>(n_threads), 0);
    for (int region = 1; region <= 5000; ++region) {
      pool.run([&](Team& team) {
        check(team.size() == n_threads, "a team is the whole pool");
        runs[static_cast<size_t>(team.rank())] += 1;
      });
      for (const int r : runs) check(r == region, "every thread has run every region");
      // Long enough now and then for the workers to fall asleep.
      if (region % 1000 == 0) usleep(20000);
    }
  }
}

void callers_take_turns() {
  ThreadPool pool(3, false);
  int64_t sum = 0;  // not atomic: only one region may run at a time
  std::vector<std::thread> callers;
  for (int c = 0; c < 4; ++c)
    callers.emplace_back([&] {
      for (int i = 0; i < 500; ++i)
        pool.run([&](Team& team) {
          if (team.rank() == 0) sum += 1;
          team.barrier();
          if (team.rank() == 1) sum += 1;
        });
    });
  for (auto& t : callers) t.join();
  check(sum == 4 * 500 * 2, "no region was lost");
}

// More threads than cores, so that teams shrink, are tried larger, and shrink again.
void teams_change_their_size_between_regions() {
  ThreadPool pool(8);
  for (int round = 0; round < 300; ++round) visits(pool, 257, 1, 3);
}

constexpr int64_t kMillisecond = 1'000'000;

// Regions of one unit of work on a machine of so many free cores; the final size, and how many
// regions ran with each.
std::map<int, int> sizes(TeamSize& size, double n_cores, int n_regions) {
  std::map<int, int> ran;
  for (int i = 0; i < n_regions; ++i) {
    const double share = std::min(1.0, n_cores / size.now());  // of a core for each thread
    const auto wall = static_cast<int64_t>(3 * kMillisecond / (size.now() * share));
    size.observe(wall, static_cast<int64_t>(static_cast<double>(wall) * share * size.now()));
    ran[size.now()] += 1;
  }
  return ran;
}

void teams_are_as_large_as_there_are_cores_for_them() {
  TeamSize size(4);
  check(size.now() == 4, "a team begins whole");
  check(sizes(size, 4, 10000)[4] == 10000, "a team that gets its cores stays whole");
  auto ran = sizes(size, 2, 10000);
  check(ran[2] > 9500, "two cores are for two threads");
  check(ran[3] > 0 && ran[1] == 0, "a larger team is tried now and then");
  ran = sizes(size, 4, 10000);
  check(size.now() == 4 && ran[4] > 7000, "and comes back when the cores do");
  // One thread of two shares its core, and the other one waits for it half of the time.
  TeamSize pair(2);
  int alone = 0;
  for (int i = 0; i < 10000; ++i) {
    alone += pair.now() == 1;
    if (pair.now() == 1)
      pair.observe(3 * kMillisecond, 3 * kMillisecond);
    else
      pair.observe(6 * kMillisecond, 6 * kMillisecond);
  }
  check(alone > 9500, "a thread that only holds the other one up is left out");
  TeamSize one(1);
  one.observe(1000 * kMillisecond, 0);
  check(one.now() == 1, "somebody has to do it");
}

void an_exception_of_all_threads_reaches_the_caller() {
  for (int n_threads : {1, 4}) {
    ThreadPool pool(n_threads);
    for (int round = 0; round < 100; ++round) {
      std::string caught;
      try {
        pool.run([&](Team&) { throw std::runtime_error("cells ran out"); });
      } catch (const std::runtime_error& e) {
        caught = e.what();
      }
      check(caught == "cells ran out", "the exception arrives");
      visits(pool, 64, 3, 2);
    }
  }
}

void pools_come_and_go() {
  for (int round = 0; round < 100; ++round) {
    ThreadPool pool(1 + round % 5);
    if (round % 2) visits(pool, 10, 1, 1);
  }
}

void impossible_sizes_are_refused() {
  for (int n_threads : {-1, 0, 1025}) {
    bool refused = false;
    try {
      ThreadPool pool(n_threads);
    } catch (const pyflow::ShapeError&) {
      refused = true;
    }
    check(refused, "a pool of " + std::to_string(n_threads) + " threads");
  }
}

void a_forked_child_is_told_so() {
  ThreadPool pool(2);
  visits(pool, 10, 1, 1);
  const pid_t child = fork();
  if (child == 0) {
    int code = 1;
    try {
      pool.run([](Team&) {});
    } catch (const pyflow::ResourceError&) {
      code = 0;
    }
    _exit(code);
  }
  int status = 0;
  waitpid(child, &status, 0);
  check(WIFEXITED(status) && WEXITSTATUS(status) == 0,
        "the child gets a ResourceError, not a hang");
  visits(pool, 10, 1, 1);
}

const std::map<std::string, void (*)()> kProperties = {
#define PYFLOW_PROPERTY(name) \
  { #name, name }
    PYFLOW_PROPERTY(loops_visit_every_item_once),
    PYFLOW_PROPERTY(idle_threads_take_over_the_share_of_a_busy_one),
    PYFLOW_PROPERTY(idle_threads_help_their_own_node_first),
    PYFLOW_PROPERTY(threads_keep_to_their_node_during_a_region),
    PYFLOW_PROPERTY(barriers_order_plain_memory),
    PYFLOW_PROPERTY(many_short_regions_run_on_all_threads),
    PYFLOW_PROPERTY(callers_take_turns),
    PYFLOW_PROPERTY(teams_change_their_size_between_regions),
    PYFLOW_PROPERTY(teams_are_as_large_as_there_are_cores_for_them),
    PYFLOW_PROPERTY(an_exception_of_all_threads_reaches_the_caller),
    PYFLOW_PROPERTY(pools_come_and_go),
    PYFLOW_PROPERTY(impossible_sizes_are_refused),
    PYFLOW_PROPERTY(a_forked_child_is_told_so),
#undef PYFLOW_PROPERTY
};

}  // namespace

int main(int argc, char** argv) {
  const auto property = kProperties.find(argc == 2 ? argv[1] : "");
  if (property == kProperties.end()) {
    std::fprintf(stderr, "usage: %s PROPERTY\n", argv[0]);
    return 2;
  }
  property->second();
}
