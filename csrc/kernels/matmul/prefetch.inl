// How kernels that read tiles from the first byte to the last prefetch them.

// How many bytes a prefetch is ahead of the read: enough for memory latency at one core's share of
// the bandwidth, and to cross the 4 KiB borders at which hardware prefetchers stop.
static constexpr int64_t kPrefetchAhead = 9216;
// The distances of Prefetch::kFar: into the second-level cache, then into the first. The best of 2
// to 9 KiB and 0.5 to 2 KiB on a Xeon where one core reads 16 GB/s (docs/performance.md).
static constexpr int64_t kFarAhead = 4608, kNearAhead = 1024;

// Prefetches during quarter Q of a piece. A few lines at a time: all lines of a piece at once would
// fill the queue of misses, and the loads of the present piece would wait behind them.
template <class Format, Prefetch How, int Q>
static inline void prefetch_quarter(const uint8_t* piece) {
  constexpr int kLines = (Format::kUnitBytes / Format::kPieces + 63) / 64;
#pragma GCC unroll 8
  for (int i = kLines * Q / 4; i < kLines * (Q + 1) / 4; ++i)
    if constexpr (How == Prefetch::kFar) {
      Simd::prefetch_far(piece + kFarAhead + 64 * i);
      Simd::prefetch(piece + kNearAhead + 64 * i);
    } else if constexpr (How == Prefetch::kNear) {
      Simd::prefetch(piece + kPrefetchAhead + 64 * i);
    }
}
