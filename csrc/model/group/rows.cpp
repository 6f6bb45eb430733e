#include "model/group/rows.h"

#include <algorithm>
#include <cstring>

#include "model/step.h"

namespace pyflow {
namespace {

constexpr size_t kScale = sizeof(float);

// Of sixteen int8: as bytes above zero, by pairs of them, then by a product.
int16_t sum_of(const int8_t* q) {
  constexpr uint64_t kOdd = 0x00ff00ff00ff00ff, kOnes = 0x0001000100010001;
  uint64_t sums = 0;
  for (int i = 0; i < 2; ++i) {
    uint64_t bytes;
    std::memcpy(&bytes, q + 8 * i, sizeof bytes);
    bytes ^= 0x8080808080808080;
    sums += (bytes & kOdd) + (bytes >> 8 & kOdd);
  }
  return static_cast<int16_t>(static_cast<int64_t>(sums * kOnes >> 48) - 16 * 128);
}

// As panel_row has it: the same of a value that has been rounded once.
uint16_t bf16_of(float x) {
  constexpr uint32_t kInfinity = 0x7f800000, kQuiet = 0x00400000;
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  const uint32_t size = bits & 0x7fffffff;
  const uint32_t more = size < kInfinity ? bits + 0x8000 : size > kInfinity ? bits | kQuiet : bits;
  return static_cast<uint16_t>(more >> 16);
}

// Of 32 values at most. Finite ones, which nearly all are, take half the instructions.
void to_bf16(const float* x, int64_t n, uint8_t* to) {
  uint16_t halves[kWireBlock];
  if (n == kWireBlock) {
    int32_t bits[kWireBlock], n_odd = 0;
    std::memcpy(bits, x, sizeof bits);
    for (const int32_t b : bits) n_odd += (b & 0x7fffffff) > 0x7f7fffff ? 1 : 0;
    if (n_odd == 0) {
      for (int64_t i = 0; i < kWireBlock; ++i)
        halves[i] = static_cast<uint16_t>((static_cast<uint32_t>(bits[i]) + 0x8000) >> 16);
      std::memcpy(to, halves, sizeof halves);
      return;
    }
  }
  for (int64_t i = 0; i < n; ++i) halves[i] = bf16_of(x[i]);
  std::memcpy(to, halves, static_cast<size_t>(n) * sizeof(uint16_t));
}

float float_of(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float x;
  std::memcpy(&x, &bits, sizeof x);
  return x;
}

}  // namespace

int64_t wire_nbytes(Form form, const Shares& columns) {
  int64_t n = 0;
  for (const Share& each : columns.all) n += wire_nbytes(form, each);
  return n;
}

bool in_wire_blocks(const Shares& columns) {
  const int64_t n = columns.all.back().end;
  return std::ranges::all_of(columns.all, [n](const Share& own) {
    return own.begin % kWireBlock == 0 && (own.end % kWireBlock == 0 || own.end == n);
  });
}

SharedRows::Blocks SharedRows::blocks(int64_t row) const {
  const int64_t n_kb = act_blocks(n_columns());
  int64_t first = n_bf16, end = n_rows;
  if (!parts.empty()) {
    const auto after = std::ranges::upper_bound(parts, row);
    first = *(after - 1);
    end = *after;
  }
  const int64_t at = act_index(row - first, 0, end - first, n_kb);
  const int64_t step = n_kb > 1 ? act_index(row - first, 1, end - first, n_kb) - at : 1;
  return {acts + first * n_kb + at, step};
}

void SharedRows::pack(const KernelTable& kernels, size_t member, int64_t row, uint8_t* to) const {
  const Share own = columns_of(member);
  if (own.size() == 0) return;
  const float* x = rows + row * stride;
  switch (form(row)) {
    case Form::F32:
      std::memcpy(to, x + own.begin, static_cast<size_t>(own.size()) * sizeof(float));
      break;
    case Form::Bf16:
      for (int64_t i = own.begin; i < own.end; i += kWireBlock)
        to_bf16(x + i, std::min(kWireBlock, own.end - i),
                to + static_cast<size_t>(i - own.begin) * sizeof(uint16_t));
      break;
    case Form::Int8:
      // Halves of blocks at both ends that are others' are written too, and then by others.
      const Blocks at = blocks(row);
      const int64_t first = own.begin / kActBlock, last = act_blocks(own.end);
      kernels.quantize(x + first * kActBlock,
                       std::min(n_columns(), last * kActBlock) - first * kActBlock,
                       at.first + first * at.step, at.step);
      for (int64_t i = own.begin; i < own.end; i += kWireBlock, to += kWireNbytes) {
        const ActBlock& block = at.first[i / kActBlock * at.step];
        const int64_t half = i / kWireBlock % 2;
        std::memcpy(to, block.q + half * kWireBlock, kWireBlock);
        std::memcpy(to + kWireBlock, block.scale + half, kScale);
      }
      break;
  }
}

void SharedRows::unpack(size_t member, int64_t row, const uint8_t* from) const {
  const Share theirs = columns_of(member);
  if (theirs.size() == 0) return;
  float* x = rows + row * stride;
  switch (form(row)) {
    case Form::F32:
      std::memcpy(x + theirs.begin, from, static_cast<size_t>(theirs.size()) * sizeof(float));
      break;
    case Form::Bf16:
      for (int64_t i = theirs.begin; i < theirs.end; ++i, from += sizeof(uint16_t)) {
        uint16_t half;
        std::memcpy(&half, from, sizeof half);
        x[i] = float_of(half);
      }
      break;
    case Form::Int8:
      const Blocks at = blocks(row);
      for (int64_t i = theirs.begin; i < theirs.end; i += kWireBlock, from += kWireNbytes) {
        ActBlock& block = at.first[i / kActBlock * at.step];
        const int64_t half = i / kWireBlock % 2;
        std::memcpy(block.q + half * kWireBlock, from, kWireBlock);
        std::memcpy(block.scale + half, from + kWireBlock, kScale);
        int32_t sum = 0;
        for (int64_t s = 2 * half; s < 2 * half + 2; ++s)
          sum += block.sum16[s] = sum_of(block.q + 16 * s);
        block.sum32[half] = sum;
        block.fsum32[half] = static_cast<float>(sum);
      }
      break;
  }
}

}  // namespace pyflow
