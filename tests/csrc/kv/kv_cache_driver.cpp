// Counts what the KV cache allocates once it has found its sizes: nothing, whatever the text does.
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

#include "kv/kv_cache.h"

namespace {
size_t n_allocations = 0;
}

void* operator new(size_t n) {
  ++n_allocations;
  if (void* p = std::malloc(n)) return p;
  throw std::bad_alloc();
}
void operator delete(void* p) noexcept { std::free(p); }
void operator delete(void* p, size_t) noexcept { std::free(p); }

namespace pyflow {
namespace {

constexpr int kWarm = 300, kSteps = 2000;

// Repeats a step and returns what it allocated after the first kWarm times.
template <class F>
size_t steady(F&& step) {
  size_t before = 0;
  for (int i = 0; i < kSteps; ++i) {
    if (i == kWarm) before = n_allocations;
    step();
  }
  return n_allocations - before;
}

KvConfig config(int n_seq_max) {
  KvConfig c;
  c.layers = {{1, 16, 16, 0}, {1, 16, 16, 32}};
  c.n_ctx = 16384;
  c.n_seq_max = n_seq_max;
  c.n_batch = 8;
  return c;
}

size_t decode(int n_sequences) {
  const KernelTable table{};
  KvCache cache(config(4), table);
  int32_t position = 0;
  return steady([&] {
    std::array<KvRow, 4> rows;
    for (int s = 0; s < n_sequences; ++s) rows[static_cast<size_t>(s)] = {position, {s}};
    cache.begin(std::span(rows).first(static_cast<size_t>(n_sequences)));
    cache.commit();
    ++position;
  });
}

// A root with two branches of two rows each, speculated upon and half accepted.
size_t speculate() {
  const KernelTable table{};
  KvCache cache(config(3), table);
  int32_t p = 0;
  return steady([&] {
    for (int b : {1, 2}) cache.seq_cp(0, b, std::max(cache.seq_pos_max(b) + 1, 0), -1);
    const KvRow rows[] = {{p, {0, 1, 2}}, {p + 1, {1}}, {p + 1, {2}}, {p + 2, {1}}, {p + 2, {2}}};
    cache.begin(rows);
    const kv::Accepted accepted[] = {{0, 0}, {2, 0}, {4, 0}};
    cache.commit(accepted);
    p += 3;
  });
}

// The same as a tree, which grows once before it is cut.
size_t grow() {
  const KernelTable table{};
  KvCache cache(config(1), table);
  int32_t p = 0;
  return steady([&] {
    const KvRow rows[] = {{p, {0}}, {p + 1, {0}}, {p + 1, {0}}};
    const int32_t parents[] = {kv::kNoParent, 0, 0};
    cache.grow(rows, parents);
    const KvRow more[] = {{p + 2, {0}}, {p + 2, {0}}};
    const int32_t their_parents[] = {1, 2};
    cache.grow(more, their_parents);
    const kv::Accepted accepted[] = {{0, 0}, {2, 0}, {4, 0}};
    cache.commit(accepted);
    p += 3;
  });
}

}  // namespace
}  // namespace pyflow

int main() {
  using namespace pyflow;
  const size_t one = decode(1), four = decode(4), branches = speculate(), tree = grow();
  std::printf("allocations: one sequence %zu, four %zu, branches %zu, a tree %zu\n", one, four,
              branches, tree);
  return one + four + branches + tree == 0 ? 0 : 1;
}
