#include <cmath>

#include "sample/stages/stages.h"

namespace pyflow::stages {

double least_by_sigma(const Logits& logits, double n) {
  const double max = logits.max();
  const auto add_all = [&](auto&& f) {
    logits.for_blocks([&](int64_t b) { return logits.block_max(b) > kNever; },
                      [&](int64_t, const float* x, int64_t size) {
                        for (int64_t i = 0; i < size; ++i)
                          if (x[i] > kNever) f(max - x[i]);
                      });
  };
  double sum = 0, squares = 0;
  int64_t count = 0;
  add_all([&](double d) { sum += d, ++count; });
  const double mean = sum / static_cast<double>(count);
  add_all([&](double d) { squares += (d - mean) * (d - mean); });
  return max - n * std::sqrt(squares / static_cast<double>(count));
}

}  // namespace pyflow::stages
