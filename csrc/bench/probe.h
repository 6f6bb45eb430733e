// The bounds of speed, measured: what the threads of a pool reach when they do nothing but read, or
// nothing but multiply, with the kernels of a table.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "kernels/table.h"

namespace pyflow {

// Called before each repeat, by the calling thread; it may throw to stop.
using Poll = std::function<void()>;
using Bytes = std::span<const uint8_t>;

// Bytes per second of reading all parts once, the best of `repeats`. Of each part a thread reads
// the share that it computes with in a step (Team::for_each), of the copy that is near it.
double read_rate(ThreadPool&, const KernelTable&, std::span<const std::vector<Bytes>> copies,
                 int repeats, const Poll&);

// Multiply-adds of int8 per second, the best of `repeats`.
double dot_rate(ThreadPool&, const KernelTable&, int repeats, const Poll&);

}  // namespace pyflow
