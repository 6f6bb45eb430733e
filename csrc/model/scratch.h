// The memory that a context computes in, laid out once for its largest step.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "core/buffer.h"
#include "core/thread_pool.h"
#include "model/step.h"

namespace pyflow {

// Rows whose logits are held at once: one pass over the head serves them, and a vocabulary of 262144
// takes 32 MiB.
inline constexpr int64_t kHeadRows = 32;

class Stage;

// What a block needs for a step; amounts are per row of the largest batch.
struct ScratchNeeds {
  int64_t floats_per_row = 0;      // reused by one block after the other
  int64_t row_floats_per_row = 0;  // likewise, for what is computed row by row
  int64_t act_blocks_per_row = 0;  // of quantized rows
  int64_t panel_cols = 0;          // of rows for prefill_matmul (kernels/table.h)
  int64_t partial_floats = 0;      // attention partials of one row and span, all heads
  size_t n_registers = 2;
  void at_least(const ScratchNeeds& o) {
    floats_per_row = std::max(floats_per_row, o.floats_per_row);
    row_floats_per_row = std::max(row_floats_per_row, o.row_floats_per_row);
    act_blocks_per_row = std::max(act_blocks_per_row, o.act_blocks_per_row);
    panel_cols = std::max(panel_cols, o.panel_cols);
    partial_floats = std::max(partial_floats, o.partial_floats);
    n_registers = std::max(n_registers, o.n_registers);
  }
};

// Where everything lies, in bytes from the start.
class ScratchLayout {
 public:
  // more: what is needed besides the stage's own needs.
  ScratchLayout(const Stage& stage, int64_t n_batch, int64_t n_ctx, CacheType cells,
                const ScratchNeeds& more = {});

  int64_t stride, head_stride;  // floats between rows of registers, of logits
  int64_t carried_stride;
  int64_t head_rows;  // rows whose logits are held at once
  int64_t partial_floats, row_floats, acts_per_row;
  int64_t kernel_nbytes;  // of a thread's products
  bool has_pairs, has_panels;
  size_t n_registers;
  std::array<size_t, kRegisters> registers{}, own_registers{};
  size_t carried, own_carried, temp, row_temp, acts, pairs, panels, kernels, partials, gathered,
      logits, angles, own_row_temp, own_acts, own_pairs, nbytes = 0;

 private:
  size_t take(int64_t nbytes);
};

class Scratch {
 public:
  // Throws ResourceError if the memory is refused.
  Scratch(const Stage& stage, int64_t n_batch, int64_t n_ctx, CacheType cells,
          const ScratchNeeds& more = {})
      : at_(stage, n_batch, n_ctx, cells, more), buffer_(at_.nbytes, "scratch") {}

  // The memory of a step of these rows for one thread of its team.
  StepMemory step(const Team& team, const StepRows& rows) const;

  // For the head: up to head_rows() rows of x, and their logits, head_stride() floats apart.
  int64_t head_rows() const { return at_.head_rows; }
  int64_t head_stride() const { return at_.head_stride; }
  float* gathered() const { return at<float>(at_.gathered); }
  float* logits() const { return at<float>(at_.logits); }

  // Where all threads find a register when they begin, `stride` floats between rows.
  float* shared(size_t r) const { return at<float>(at_.registers[r]); }
  int64_t stride() const { return at_.stride; }

  const Buffer& memory() const { return buffer_; }

  // A row of x as the last step left it, and what it carries.
  const float* hidden(int64_t row) const { return at<float>(at_.registers[0]) + row * at_.stride; }
  const float* carried(int64_t row) const {
    return at<float>(at_.carried) + row * at_.carried_stride;
  }

 private:
  template <class T>
  T* at(size_t offset) const {
    return reinterpret_cast<T*>(buffer_.data() + offset);
  }
  ScratchLayout at_;
  Buffer buffer_;
};

}  // namespace pyflow
