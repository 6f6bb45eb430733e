// A named tensor inside somebody else's memory, as a checkpoint describes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/dtype.h"

namespace pyflow {

struct TensorRecord {
  std::string name;
  DType dtype = DType::F32;       // that the values are read as
  bool is_double = false;         // stored as F64, and read as F32
  std::vector<int64_t> shape;     // outermost first: {rows, row length}; GGUF's order reversed
  uint64_t offset = 0;            // of the first byte in the file
  uint64_t nbytes = 0;            // checked against dtype, shape and file
  const uint8_t* data = nullptr;  // mapped; valid while the checkpoint lives
  // Stored as int8 codes, and read as Q8_0: a weight is code / divisor, of which there is one F32,
  // or one for each row. Null: another type.
  const uint8_t* divisors = nullptr;
  int64_t n_divisors = 0;
  // Of MXFP4 that lies in two places, e of all blocks, and then `data` are nibbles alone, those of
  // neighbours in a byte (files/safetensors/mx_pairs.h).
  const uint8_t* scales = nullptr;
  uint32_t block_bytes() const {
    return is_double ? 8 : divisors ? info(dtype).block : info(dtype).block_bytes;
  }
  int64_t cols() const { return shape.empty() ? 1 : shape.back(); }
  int64_t rows() const {
    int64_t n = 1;
    for (size_t i = 0; i + 1 < shape.size(); ++i) n *= shape[i];
    return n;
  }
  // Blocks [first, first + n) of such a tensor as GGUF has them: e, then in byte j weight j in the
  // low and weight j + 16 in the high nibble.
  void join_blocks(int64_t first, int64_t n, uint8_t* out) const {
    for (const uint8_t* from = data + 16 * first; n-- > 0; from += 16) {
      *out++ = scales[first++];
      for (int j = 0; j < 16; ++j) {
        const int low = from[j / 2] >> j % 2 * 4 & 15, high = from[8 + j / 2] >> j % 2 * 4 & 15;
        *out++ = static_cast<uint8_t>(low | high << 4);
      }
    }
  }
};

}  // namespace pyflow
