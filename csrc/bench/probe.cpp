#include "bench/probe.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <vector>

#include "kernels/dispatch.h"

namespace pyflow {
namespace {

double seconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// `amount` per second of the fastest of `repeats` runs over n pieces.
template <class Body>
double best_rate(ThreadPool& pool, int repeats, const Poll& poll, double amount, int64_t n,
                 const Body& body) {
  double best = 0;
  for (int i = 0; i < repeats; ++i) {
    poll();
    const double start = seconds();
    pool.run([&](Team& team) {
      team.for_each(n, 1, [&](int64_t begin, int64_t end) { body(team.copy(), begin, end); });
    });
    best = std::max(best, amount / (seconds() - start));
  }
  return best;
}

// A few pieces per thread, so that a delayed thread can be helped; whole lines.
std::vector<Bytes> pieces_of(std::span<const Bytes> parts, size_t n_threads) {
  constexpr size_t kPiece = 1 << 20, kLine = 64;
  std::vector<Bytes> pieces;
  for (size_t rank = 0; rank < n_threads; ++rank)
    for (const Bytes part : parts) {
      const size_t lines = part.size() / kLine;
      const size_t end = lines * (rank + 1) / n_threads * kLine;
      for (size_t i = lines * rank / n_threads * kLine; i < end; i += kPiece)
        pieces.push_back(part.subspan(i, std::min(kPiece, end - i)));
    }
  return pieces;
}

}  // namespace

double read_rate(ThreadPool& pool, const KernelTable& kernels,
                 std::span<const std::vector<Bytes>> copies, int repeats, const Poll& poll) {
  std::vector<std::vector<Bytes>> pieces;
  for (const auto& parts : copies)
    pieces.push_back(pieces_of(parts, static_cast<size_t>(pool.size())));
  double nbytes = 0;
  for (const Bytes piece : pieces[0]) nbytes += static_cast<double>(piece.size());
  const bool prefetch = prefetches() == Prefetch::kNear;
  std::atomic<uint64_t> sink{0};
  return best_rate(pool, repeats, poll, nbytes, static_cast<int64_t>(pieces[0].size()),
                   [&](size_t copy, int64_t begin, int64_t end) {
                     uint64_t sum = 0;
                     for (int64_t i = begin; i < end; ++i) {
                       const Bytes piece = pieces[copy][static_cast<size_t>(i)];
                       sum += kernels.read_bytes(piece.data(), static_cast<int64_t>(piece.size()),
                                                 prefetch);
                     }
                     sink.fetch_xor(sum, std::memory_order_relaxed);
                   });
}

double dot_rate(ThreadPool& pool, const KernelTable& kernels, int repeats, const Poll& poll) {
  constexpr int64_t kMultiplies = 1 << 26;  // per piece: some 0.2 ms, 20 ms of plain C++
  const int64_t n_pieces = 8 * pool.size();
  alignas(64) std::array<uint8_t, 64> weights;
  for (size_t i = 0; i < weights.size(); ++i) weights[i] = static_cast<uint8_t>(i % 16);
  // Every second group takes the one before it back, so that no sum overflows.
  alignas(64) std::array<int8_t, kPeakActs> acts;
  for (size_t i = 0; i < acts.size(); ++i) {
    const auto x = static_cast<int8_t>((i / 32 * 16 + i % 16) * 37 % 128);
    acts[i] = static_cast<int8_t>(i / 16 % 2 ? -x : x);
  }
  std::atomic<int64_t> done{0};
  std::atomic<int32_t> sink{0};
  const auto piece = [&](int64_t, int64_t) {
    std::array<int32_t, 16> sums;
    done += kernels.dot_peak(kMultiplies, weights.data(), acts.data(), sums.data());
    for (const int32_t sum : sums) sink.fetch_xor(sum, std::memory_order_relaxed);
  };
  piece(0, 1);
  const auto amount = static_cast<double>(done * n_pieces);  // every piece does the same
  return best_rate(pool, repeats, poll, amount, n_pieces, [&](size_t, int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) piece(i, i + 1);
  });
}

}  // namespace pyflow
