// Packs matrices for machines of several memory nodes, taking note of what the system is asked for:
// this file's syscall() answers mbind.
//
// usage: placement_driver; exit code 0 when all holds (test_placement.py).
#include <dlfcn.h>
#include <linux/mempolicy.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "encode/table.h"
#include "model/weights.h"

namespace {

using namespace pyflow;

struct Bound {
  const uint8_t* begin;
  size_t nbytes;
  int policy;
  unsigned long nodes;  // a bit for each
};
std::vector<Bound> bound;
int answer = 0;  // an errno

void check(bool ok, const std::string& what) {
  if (ok) return;
  std::fprintf(stderr, "broken: %s\n", what.c_str());
  std::exit(1);
}

}  // namespace

extern "C" long syscall(long number, ...) {
  va_list list;
  va_start(list, number);
  long a[6];
  for (long& x : a) x = va_arg(list, long);
  va_end(list);
  if (number == SYS_mbind) {
    const auto* mask = reinterpret_cast<const unsigned long*>(a[3]);
    bound.push_back({reinterpret_cast<const uint8_t*>(a[0]), static_cast<size_t>(a[1]),
                     static_cast<int>(a[2]), mask[0]});
    errno = answer;
    return answer ? -1 : 0;
  }
  static const auto real = reinterpret_cast<long (*)(long, ...)>(dlsym(RTLD_NEXT, "syscall"));
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

// The tables of all instruction sets are left out of this program: nothing is encoded here.
const pyflow::EncodeTable& pyflow::encode_table(const KernelTable&) { std::abort(); }

namespace {

const KernelTable kernels = {};
constexpr size_t kPage = 4096;
constexpr int64_t kCols = 256;  // a tile of floats is four pages

// Matrices as a layer has them, q, k and v in one loop; and their loops.
struct Model {
  std::vector<TensorRecord> records;
  std::vector<std::vector<float>> values;
  std::unique_ptr<Weights> weights;
  std::vector<std::vector<const PackedTensor*>> loops;

  explicit Model(const std::vector<int>& threads, Numa mode) {
    std::vector<NumaNode> nodes;
    int n_threads = 0;
    for (const int n : threads) {
      nodes.push_back({static_cast<int>(nodes.size()), {0, 1, 2, 3, 4, 5, 6, 7}, n});
      n_threads += n;
    }
    placement = std::make_shared<Placement>(mode, nodes);
    const std::vector<std::pair<std::string, int64_t>> shapes = {
        {"embedding", 1000}, {"q", 576}, {"k", 192}, {"v", 192}, {"o", 576}, {"up", 16}};
    for (const auto& [name, rows] : shapes) {
      values.emplace_back(static_cast<size_t>(rows * kCols));
      for (size_t i = 0; i < values.back().size(); ++i)
        values.back()[i] = static_cast<float>(i * (records.size() + 1) % 1021);
      records.push_back({.name = name, .dtype = DType::F32, .shape = {rows, kCols}});
    }
    for (size_t i = 0; i < records.size(); ++i)
      records[i].data = reinterpret_cast<const uint8_t*>(values[i].data());
    weights = std::make_unique<Weights>(
        TensorSource{"test",
                     [this](const std::string& name) {
                       return &*std::find_if(records.begin(), records.end(),
                                             [&](const TensorRecord& r) { return r.name == name; });
                     },
                     [](const TensorRecord&) {}, [] {}},
        std::nullopt, kernels);
    for (const TensorRecord& r : records) {
      const bool continued = r.name == "k" || r.name == "v";
      if (!continued) loops.emplace_back();
      loops.back().push_back(
          &weights->matrix(TensorRef{r.name}, r.rows(), kCols,
                           continued ? Weights::Loop::Continued : Weights::Loop::Own));
    }
    bound.clear();
    ThreadPool pool(std::max(1, n_threads), false, placement);
    weights->pack(
        pool, [] {}, nullptr);
  }

  // Each copy has the values of the file.
  void check_values() const {
    std::vector<float> row(kCols);
    for (size_t copy = 0; copy < placement->n_copies(); ++copy) {
      size_t i = 0;
      for (const auto& loop : loops)
        for (const PackedTensor* w : loop) {
          for (int64_t r = 0; r < w->rows(); ++r) {
            w->dequantize_row(r, row.data(), copy);
            check(std::equal(row.begin(), row.end(), &values[i][static_cast<size_t>(r * kCols)]),
                  "row " + std::to_string(r) + " of " + records[i].name + " in copy " +
                      std::to_string(copy));
          }
          ++i;
        }
    }
  }

  std::shared_ptr<Placement> placement;
};

// The memory node that a page was bound to; exactly one.
unsigned long nodes_of(const uint8_t* page) {
  unsigned long nodes = 0;
  for (const Bound& b : bound)
    if (page >= b.begin && page < b.begin + b.nbytes) {
      check(nodes == 0, "a page is bound once");
      nodes = b.nodes;
    }
  return nodes;
}

// Threads take their own share first, wherever its tiles lie.
void a_share_lies_with_those_who_read_it(const std::vector<int>& threads) {
  const Model model(threads, Numa::Local);
  model.check_values();
  int n_threads = 0;
  std::vector<int> node_of;
  for (size_t node = 0; node < threads.size(); ++node) {
    n_threads += threads[node];
    node_of.insert(node_of.end(), static_cast<size_t>(threads[node]), static_cast<int>(node));
  }
  for (const Bound& b : bound) {
    check(b.policy == MPOL_PREFERRED, "a full node must not end the process");
    check(reinterpret_cast<uintptr_t>(b.begin) % kPage == 0 && b.nbytes % kPage == 0,
          "whole pages are bound");
  }
  for (const auto& loop : model.loops) {
    std::vector<const uint8_t*> tiles;
    for (const PackedTensor* w : loop)
      for (int64_t t = 0; t < w->tiles(); ++t)
        tiles.push_back(w->data() + static_cast<size_t>(t) * 16 * kCols * sizeof(float));
    const auto n_tiles = static_cast<int64_t>(tiles.size());
    const int64_t grain = tile_grain(n_tiles, n_threads), pieces = (n_tiles + grain - 1) / grain;
    for (int rank = 0; rank < n_threads; ++rank)
      for (int64_t t = share_begin(pieces, rank, n_threads) * grain;
           t < std::min(n_tiles, share_begin(pieces, rank + 1, n_threads) * grain); ++t)
        for (size_t page = 0; page < 4; ++page)
          check(nodes_of(tiles[static_cast<size_t>(t)] + page * kPage) ==
                    1UL << node_of[static_cast<size_t>(rank)],
                "page " + std::to_string(page) + " of tile " + std::to_string(t) +
                    " lies with thread " + std::to_string(rank));
  }
}

void each_node_has_a_copy() {
  const Model model({2, 1, 1}, Numa::Mirror);
  model.check_values();
  check(bound.size() == 3, "a request for each copy");
  for (size_t copy = 0; copy < 3; ++copy)
    for (const auto part : model.weights->parts(copy, {}))
      for (const uint8_t* page = part.data(); page < part.data() + part.size(); page += kPage)
        check(nodes_of(page) == 1UL << copy, "a copy lies on its node");
  check(model.weights->nbytes(3) == 3 * model.weights->nbytes(1), "copies are counted");
}

void pages_go_round() {
  const Model model({2, 0, 1}, Numa::Interleave);
  model.check_values();
  check(bound.size() == 1 && bound[0].policy == MPOL_INTERLEAVE && bound[0].nodes == 0b111 &&
            bound[0].nbytes >= model.weights->nbytes(1),
        "all pages go round robin, also over the node without threads");
}

void a_refusal_changes_no_weight() {
  answer = EPERM;
  for (const Numa mode : {Numa::Interleave, Numa::Local, Numa::Mirror}) {
    const Model model({1, 1}, mode);
    model.check_values();
    check(!model.placement->refusals().empty(), "it is told");
    for (const std::string& refusal : model.placement->refusals())
      check(refusal.ends_with(": Operation not permitted"), refusal);
  }
  answer = 0;
}

void off_asks_for_nothing() {
  const Model model({}, Numa::Off);
  model.check_values();
  check(bound.empty(), "no request");
}

}  // namespace

int main() {
  for (const auto& threads : {std::vector<int>{1, 1}, {2, 2}, {1, 2, 1}, {3, 2}, {1}})
    a_share_lies_with_those_who_read_it(threads);
  each_node_has_a_copy();
  pages_go_round();
  a_refusal_changes_no_weight();
  off_asks_for_nothing();
}
