// exp and log in double from additions, multiplications and divisions alone, so that a draw is the
// same on every machine; libm differs between versions. Plain series suffice: below 2 ulp, and a
// sampler needs few of them.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

namespace pyflow::portable {

inline constexpr double kLn2 = 0.693147180559945309417;
// ln2 in two parts: the first has 32 significant bits, so that n * kLn2High is exact for |n| <
// 2^21.
inline constexpr double kLn2High = 0.693147180369123816490;
inline constexpr double kLn2Low = 1.90821492927058770002e-10;

// Natural logarithm of a positive, normal x.
inline double log(double x) {
  // x = 2^n * m with m in [sqrt(1/2), sqrt(2)).
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e667f3bcdULL;
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  const auto n = static_cast<int64_t>(bits - kSqrtHalf) >> 52;
  const double m = std::bit_cast<double>(bits - (static_cast<uint64_t>(n) << 52));
  // log m = 2 atanh(s) = 2s (1 + z/3 + z^2/5 + ...), z = s^2 < 0.0295: z^11/23 is below 2^-57.
  const double f = m - 1.0, s = f / (2.0 + f), z = s * s;
  double p = 1.0 / 21;
  for (const double c :
       {1.0 / 19, 1.0 / 17, 1.0 / 15, 1.0 / 13, 1.0 / 11, 1.0 / 9, 1.0 / 7, 1.0 / 5, 1.0 / 3})
    p = p * z + c;
  // 2s = f - s f exactly in real numbers, and f is exact: the small correction is added to it.
  const double correction = s * (2.0 * z * p - f);
  const auto e = static_cast<double>(n);
  return e * kLn2High + (f + (correction + e * kLn2Low));
}

// e^x for x <= 0; 0 where the result is not a normal number.
inline double exp(double x) {
  if (!(x > -708.0)) return 0.0;
  // x = n ln2 + r with |r| <= ln2 / 2.
  const auto n = static_cast<int64_t>(x / kLn2 - 0.5);
  const auto e = static_cast<double>(n);
  const double r = (x - e * kLn2High) - e * kLn2Low;
  // Taylor: r^14/14! is below 2^-57.
  double p = 1.0 / 6227020800;
  for (const double c : {1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320,
                         1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1.0, 1.0})
    p = p * r + c;
  return p * std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52);
}

}  // namespace pyflow::portable
