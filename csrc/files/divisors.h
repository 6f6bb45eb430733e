// int8 codes beside the numbers that divide them, in files of CTranslate2 and Marian.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>

#include "core/message.h"
#include "files/checkpoint.h"
#include "files/cursor.h"

namespace pyflow {

// Makes int8 codes usable: n divisors lie from `offset` on, within the file. The scale of a block,
// 1 / divisor in F16, must be finite. FormatError: one is not such a number.
inline void set_divisors(const Cursor& in, const uint8_t* file, TensorRow& t, uint64_t offset,
                         uint32_t n) {
  for (uint64_t at = offset; at < offset + n * sizeof(float); at += sizeof(float)) {
    const auto divisor = load<float>(file + at);
    if (!(divisor >= 0x1p-15f && std::isfinite(divisor)))
      in.fail(at, "divisor of " + quoted(t.name), "a number of 2^-15 or more",
              std::to_string(divisor), kAdviseConvert);
  }
  t.divisors = offset;
  t.n_divisors = n;
  t.supported = true;
}

}  // namespace pyflow
