#include "model/spec.h"

#include <algorithm>
#include <cmath>

namespace pyflow {

TensorRef TensorRef::slice(int64_t first, int64_t n) const {
  TensorRef part = *this;
  part.rows.clear();
  if (rows.empty()) part.rows.emplace_back(first, n);
  int64_t base = 0;
  for (const auto& [start, count] : rows) {
    const int64_t begin = std::max(first, base), end = std::min(first + n, base + count);
    if (begin < end)
      part.rows.emplace_back(start < 0 ? start : start + (begin - base) * step, end - begin);
    base += count;
  }
  return part;
}

void TensorRef::check_rows(const std::string& where, int64_t have, int64_t needed) const {
  if (rows.empty()) return;
  int64_t n = 0;
  for (const auto& [start, count] : rows) {
    if (count < 1 || (start >= 0 && (start >= have || count - 1 > (have - 1 - start) / step)))
      throw ShapeError(where + "rows " + std::to_string(start) + " to " +
                       std::to_string(start + count * step) + " of " + std::to_string(have));
    n += count;
  }
  if (n != needed)
    throw ShapeError(where + "expected a cut of " + std::to_string(needed) + " rows, found " +
                     std::to_string(n));
}

std::string TensorRef::text() const {
  std::string text = name;
  if (rows.empty()) return text;
  text += " [" + std::to_string(rows[0].first);
  text += " to " + std::to_string(rows.back().first + rows.back().second * step) + ")";
  return text;
}

void RopeSpec::angles(int32_t position, int64_t n_ctx, double magnitude, float* cos_sin) const {
  const std::vector<double>& frequencies = inv_freq_at(n_ctx);
  for (size_t i = 0; i < pairs(); ++i) {
    const double angle = position * frequencies[i];
    cos_sin[i] = static_cast<float>(std::cos(angle) * magnitude);
    cos_sin[pairs() + i] = static_cast<float>(std::sin(angle) * magnitude);
  }
}

}  // namespace pyflow
