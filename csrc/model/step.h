// One step as the blocks of one thread see it: rows, memory, the rest. A context fills it
// (Context::step); all memory belongs to the context's Scratch.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "core/thread_pool.h"
#include "kernels/table.h"
#include "kv/kv_cache.h"
#include "kv/sources.h"

namespace pyflow {

class AdapterSet;
class Observer;
class Group;

// Registers hold a row of n_embd floats per token: 0 is x, 1 is h, 2 is a (model/spec.h).
inline constexpr size_t kRegisters = 3;

// Steps of at most so many rows are not shared row by row: each thread computes norms, sums and
// rounding for itself, because a norm of a row costs less than a barrier.
inline constexpr int64_t kOwnRows = 4;

// Attention of fewer rows than this is split at spans of positions; this many rows alone keep all
// threads busy.
inline constexpr int64_t kSplitRows = 8;

inline int64_t padded(int64_t n) { return (n + kTileRows - 1) / kTileRows * kTileRows; }
inline int64_t act_blocks(int64_t k) { return (k + kActBlock - 1) / kActBlock; }

// A text of an encoder: its rows among those of the step, and where its keys begin, in sixteens.
struct TextRows {
  int64_t first, n, first_keys;
};

// The tokens of a step.
struct StepRows {
  int64_t n_rows;
  int64_t n_prefill;                // rows, the first ones, that are of prompts
  int64_t first_row;                // number of row 0 among the pending rows of the cache
  std::span<const int32_t> tokens;  // empty on a stage without embedding
  std::span<const KvRow> rows;
  std::span<const int32_t> types = {};   // of tokens, for encoders that have types
  std::span<const TextRows> texts = {};  // of encoders: rows see those of their text
  int64_t n_keys = 0;                    // rows of all texts, each rounded up to whole sixteens
  std::span<const AdapterSet* const> adapters = {};  // by row, or null; empty: no row has any
};

// Texts in pieces of so many rows; the last one of a text may be shorter.
inline int64_t n_pieces(std::span<const TextRows> texts, int64_t rows) {
  int64_t n = 0;
  for (const TextRows& text : texts) n += (text.n + rows - 1) / rows;
  return n;
}
// body(text, first row in it, end) for pieces [begin, end).
template <class Body>
void for_pieces(std::span<const TextRows> texts, int64_t rows, int64_t begin, int64_t end,
                Body&& body) {
  int64_t piece = 0;
  for (const TextRows& text : texts) {
    const int64_t n = (text.n + rows - 1) / rows;
    for (int64_t i = std::max<int64_t>(0, begin - piece); i < std::min(n, end - piece); ++i)
      body(text, i * rows, std::min(text.n, (i + 1) * rows));
    piece += n;
    if (piece >= end) return;
  }
}

// Where a step computes.
struct StepMemory {
  int64_t stride;                            // floats between rows of a register
  bool own_rows;                             // few rows, none by panels: each thread has its own
  std::array<float*, kRegisters> registers;  // where each register is now
  std::array<float*, kRegisters> shared;     // written by products, and by rows that are shared
  std::array<float*, kRegisters> own;        // written by rows of this thread alone
  float*
      carried;  // n_batch x carried_stride: StageSpec::n_carried; of this thread, as own rows are
  float* carried_out;  // likewise, but of all threads, who share its writing
  int64_t carried_stride;
  float* temp;               // n_batch x floats_per_row of ScratchNeeds
  float* row_temp;           // n_batch x row_floats_per_row; own or shared
  ActBlock* acts;            // n_batch x act_blocks_per_row; own or shared
  ActBlock* shared_acts;     // the same of all threads: inputs that members have rounded
  ActBlock* pairs;           // 2 n_batch rows, for fine inputs (quant/packed_tensor.h); or null
  uint16_t* panels;          // n_batch rows, for prefill_matmul; null if no matrix has it
  uint8_t* kernel_scratch;   // of this thread: MatmulArgs::scratch, AttendArgs::scratch
  float* partials;           // of attention that is split at spans
  int64_t partial_capacity;  // floats
  float* angles;             // of all RopeTables

  // Where a product, or row-wise work, is to write a register; reads then find it there.
  float* product_output(size_t r) { return registers[r] = shared[r]; }
  float* row_output(size_t r) { return registers[r] = own_rows ? own[r] : shared[r]; }
};

// The angles of one RopeSpec: for each row n_pairs cosines, then n_pairs sines.
struct RopeTable {
  float* values;
  int64_t n_pairs;
  bool interleaved;
  float* row(int64_t r) const { return values + r * 2 * n_pairs; }
};

struct Step : StepRows, StepMemory {
  const KernelTable& kernels;
  size_t copy;  // of the weights, near this thread
  KvCache* kv;
  Observer* observer;  // null: none
  std::vector<RopeTable> ropes;
  Sources* sources = nullptr;                  // of decoders that see some
  std::span<const RowView> source_views = {};  // by row: the cells of its source
  Group* group = nullptr;                      // of the members that share the stage; null: none
  float* low_rank = nullptr;                   // A x of adapters, for n_batch rows
  int64_t low_rank_stride = 0;
};

// body(begin, end) over all rows: shared by the team, with a barrier at the end, or by each thread
// for itself.
template <class Body>
void each_row(const Step& s, Team& team, int64_t n_rows, Body&& body) {
  if (s.own_rows)
    body(int64_t{0}, n_rows);
  else
    team.for_each(n_rows, std::max<int64_t>(1, n_rows / (4 * team.size())), body);
}

}  // namespace pyflow
