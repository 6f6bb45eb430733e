// What drivers of kernels share: data that are the same on every machine, and a record of results.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <limits>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace pyflow {

class Random {
 public:
  uint64_t bits() {  // splitmix64
    uint64_t z = state_ += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
  }
  int64_t below(int64_t n) { return static_cast<int64_t>(bits() >> 33) % n; }
  // Of either sign, from 2^-6 to 2^4.
  float real() {
    const float mantissa = 1.0f + static_cast<float>(below(1 << 23)) * 0x1p-23f;
    const float size = std::ldexp(mantissa, static_cast<int>(below(10)) - 6);
    return below(2) ? size : -size;
  }
  std::vector<float> reals(int64_t n) {
    std::vector<float> x(static_cast<size_t>(n));
    for (float& v : x) v = real();
    return x;
  }
  // The same with every fifth value one of those that need care.
  std::vector<float> odd_reals(int64_t n) {
    using limits = std::numeric_limits<float>;
    static const float odd[] = {0.0f,
                                -0.0f,
                                limits::infinity(),
                                -limits::infinity(),
                                limits::quiet_NaN(),
                                limits::max(),
                                limits::lowest(),
                                limits::denorm_min(),
                                -1e-39f,
                                1e-30f,
                                65520.0f,
                                6e-8f,
                                88.8f,
                                -87.4f};
    std::vector<float> x = reals(n);
    for (float& v : x)
      if (below(5) == 0) v = odd[below(std::size(odd))];
    return x;
  }

 private:
  uint64_t state_ = 1;
};

// What the kernels wrote, by name. One not-a-number is as good as another.
class Record {
 public:
  void add(const std::string& kernel, std::span<const uint8_t> bytes) {
    auto at = std::find_if(written_.begin(), written_.end(),
                           [&](const auto& w) { return w.first == kernel; });
    if (at == written_.end()) at = written_.insert(at, {kernel, {}});
    at->second.insert(at->second.end(), bytes.begin(), bytes.end());
  }
  template <class T>
  void add(const std::string& kernel, std::vector<T> values) {
    for (T& v : values)
      if (v != v) v = std::numeric_limits<T>::quiet_NaN();
    add(kernel, {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(T)});
  }
  const std::vector<std::pair<std::string, std::vector<uint8_t>>>& written() const {
    return written_;
  }

 private:
  std::vector<std::pair<std::string, std::vector<uint8_t>>> written_;
};

inline constexpr float kPoison = 7.0f;

inline std::vector<float> poisoned(int64_t n) {
  return std::vector<float>(static_cast<size_t>(n), kPoison);
}

}  // namespace pyflow
