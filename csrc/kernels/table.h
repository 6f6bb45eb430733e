// What an instruction set must offer: one table of functions, filled by isa_<isa>.cpp and chosen
// once at run time (dispatch.h). Kernels take pointers, check nothing and cannot fail; everything
// above them has checked. Same arguments give the same bits from every table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace pyflow {
namespace quant {
struct Fields;  // encode/search/lanes.h
}

// Sixteen output rows make a tile; a tile is cut along k into format-sized pieces.
inline constexpr int64_t kTileRows = 16;
inline constexpr int64_t kActBlock = 64;      // activations that are stored together
inline constexpr int64_t kPanelRows = 16;     // activation rows stored side by side
inline constexpr int64_t kLogicalBlock = 64;  // positions softmaxed together
inline constexpr int64_t kLogicalSpan =
    512;  // positions merged together; the unit of splitting work

// Sixty-four activations of one row as int8: x[i] ~ scale[i / 32] * q[i], |q| <= 127. The sums
// serve formats whose weights carry an offset or a minimum.
struct alignas(32) ActBlock {
  int8_t q[64];
  float scale[2];   // of q[0..31], q[32..63]
  float fsum32[2];  // their sums, exact
  int32_t sum32[2];
  int16_t sum16[4];
};
static_assert(sizeof(ActBlock) == 96);

// Where row r's block kb lies among n_rows quantized rows of n_kb blocks: panels of 16 rows, in
// each the blocks in order, in each block the rows side by side.
constexpr int64_t act_index(int64_t r, int64_t kb, int64_t n_rows, int64_t n_kb) {
  const int64_t first = r / kPanelRows * kPanelRows;
  const int64_t width = n_rows - first < kPanelRows ? n_rows - first : kPanelRows;
  return first * n_kb + kb * width + (r - first);
}

// Weights that are to become blocks, finite and up to 65504.
struct SearchArgs {
  const float* x;           // rows of n_cols, one after the other
  const float* importance;  // of the columns, up to 1e30; null: all alike
  int64_t n_cols;           // a multiple of the block
  bool on_grid = true;      // they may be values of such blocks already, to be found again
};

// How kernels fetch weights before they use them: not at all, which leaves it to the CPU; into the
// first-level cache; or into the second-level one, and from there into the first, later.
enum class Prefetch : uint8_t { kNone, kNear, kFar };

struct MatmulArgs {
  const uint8_t* tiles;  // a packed tensor (quant/packed_tensor.h)
  int64_t k;             // columns of the weight
  const ActBlock* acts;  // n_rows rows of ceil(k / 64) blocks, for quantized weights
  const float* x;        // n_rows rows of f32, for F32/F16/BF16 weights
  int64_t x_stride;      // floats between rows of x
  int64_t n_rows;
  float* y;           // n_rows rows; 16 floats per tile are written
  int64_t y_stride;   // floats between rows of y, at least 16 * number of tiles
  Prefetch prefetch;  // of more than two rows kNone is kNear (dispatch.h)
};

// out[i][j] += sum over r < n of a[r][i] * b[r][j], for i < rows, j < columns.
struct OuterArgs {
  const float* a;
  int64_t a_stride;  // floats between rows
  const float* b;
  int64_t b_stride;
  int64_t n;
  float* out;
  int64_t out_stride;
  int64_t rows, columns;  // columns a multiple of 16
};

// Blocks of four rows, each with four ways to round it, of which row r's are lanes 4 r and on:
// weight k has x[16 k] and on, and so all that is given by weight. The best way of a row is traced
// from the first weight on: lane 4 r of it, then, of weight k + 1, lane 4 r + parents[k][lane].
struct RoundArgs {
  float* x;        // what weights are to be; in the end, what they were to be when their turns came
  const float* w;  // what errors are counted from
  const float* levels;  // even: first ones, then steps; else level by level, 2 or more
  int64_t n_levels;
  bool even;
  const float* factors;  // [k][i]: what an error of weight k adds to weight i before it
  int64_t factors_stride;
  const float* importance;  // of what rounding leaves of each weight, squared
  int64_t n;                // weights
  int32_t* q;               // their levels' numbers
  int32_t* parents;         // 0 to 3
};

// Keys and values of one layer. Sixteen cells share a block of keys, cells innermost, so that
// scores of sixteen cells come from whole vectors; values lie cell by cell. S = slots, a multiple
// of 16; head_dim is a multiple of 16, for Q8_0 of 32, and at most kMaxHeadDim.
//   F16   k[S/16][n_kv_heads][head_dim][16] f16      v[S][n_kv_heads][head_dim] f16
//   Q8_0  k[S/16][n_kv_heads][head_dim/32]{ d[16] f16, q[32][16] i8 }
//         v[S][n_kv_heads][head_dim/32]{ d f16, q[32] i8 }
inline constexpr int64_t kMaxHeadDim = 16384;
enum class CacheType : uint8_t { F16, Q8_0 };
struct KvView {
  uint8_t* k;
  uint8_t* v;
  CacheType type;
  int64_t n_kv_heads;
  int64_t head_dim;
};

// The cells a row attends to, ascending in position, no position twice, none negative.
struct RowView {
  const int32_t* slots;
  const int32_t* positions;
  int64_t n;
};

struct AttendArgs {
  KvView kv;
  const float* q;  // n_rows x n_heads x head_dim
  int64_t q_stride;
  float* out;  // as q, and not the same memory
  int64_t out_stride;
  const RowView* views;  // one per row
  int64_t n_heads;
  float scale;
  float softcap;                  // 0: none
  const float* slopes = nullptr;  // one per query head: a score gets slope * -distance; null: none
};

// Where a token comes from (contract C1): a prompt, or generation and its verification. Only a
// table with prefill_matmul computes them differently.
enum class Regime : uint8_t { Prefill, Decode };

enum class Activation : uint8_t { Silu, Gelu, GeluTanh, Relu };  // Gelu: by erf

inline constexpr int64_t kPeakActs = 1024;  // first-level cache, yet too many for registers

struct KernelTable {
  const char* name;

  // y[r][16*t..] = W[16*t..] . x[r] for tiles [tile_begin, tile_end), by weight format.
  void (*matmul[kDTypeCount])(const MatmulArgs&, int64_t tile_begin, int64_t tile_end);

  // The same for the rows of a prompt, where the table has a faster arithmetic for many rows; null:
  // matmul.
  void (*prefill_matmul[kDTypeCount])(const MatmulArgs&, int64_t tile_begin, int64_t tile_end);

  // What blocks [begin, end) of the matrix are to hold, by weight format; null for plain floats. A
  // block's fields depend on nothing but its own weights and their importance.
  void (*search[kDTypeCount])(const SearchArgs&, int64_t begin, int64_t end, quant::Fields* out);

  // Each weight to one of its levels, from the last to the first, for the least sum of squares.
  void (*round)(const RoundArgs&);

  // Sums of outer products, one fma for each row, ascending.
  void (*add_outer)(const OuterArgs&);

  // One row of k floats to ceil(k/64) blocks, `stride` blocks apart; the tail is padded with zeros.
  void (*quantize)(const float* x, int64_t k, ActBlock* out, int64_t stride);

  // y = x / sqrt(mean(x^2) + eps) * weight
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* y);
  // The same of x less its mean.
  void (*layer_norm)(const float* x, const float* weight, float eps, int64_t n, float* y);
  void (*add)(float* x, const float* y, int64_t n);                   // x += y
  void (*add_scaled)(float* x, const float* y, float s, int64_t n);   // x += s * y, fused
  void (*scale)(float* x, float s, int64_t n);                        // x *= s
  void (*softcap)(float* x, float cap, int64_t n);                    // x = cap * tanh(x / cap)
  void (*activate)(Activation, float* x, int64_t n);                  // x = act(x)
  void (*gate)(Activation, float* gate, const float* up, int64_t n);  // gate = act(gate) * up
  // Rotates the first 2 * n_pairs values of a head. cos_sin: n_pairs cosines, then n_pairs sines.
  // Half order pairs (i, i + n_pairs), interleaved order (2i, 2i + 1).
  void (*rope)(float* head, const float* cos_sin, int64_t n_pairs, bool interleaved);
  // Key and value of one head into a cell: head_dim floats each.
  void (*store_kv)(const KvView&, int64_t slot, int64_t kv_head, const float* k, const float* v);
  // All keys of a cell, n_kv_heads x head_dim floats.
  void (*load_k)(const KvView&, int64_t slot, float* k);
  void (*store_k)(const KvView&, int64_t slot, const float* k);

  // Attention of rows [row_begin, row_end) for the query heads that share kv_head, over the whole
  // view.
  void (*attend)(const AttendArgs&, int64_t row_begin, int64_t row_end, int64_t kv_head);
  // The same for one row, cut at spans of kLogicalSpan positions so that several threads can share
  // it: attend_span writes (n_heads / n_kv_heads) x (head_dim + 2) floats, attend_merge joins
  // consecutive spans in order. Bitwise equal to attend.
  void (*attend_span)(const AttendArgs&, int64_t row, int64_t kv_head, int64_t span,
                      float* partial);
  void (*attend_merge)(const AttendArgs&, int64_t row, int64_t kv_head, const float* partials,
                       int64_t n_spans);

  // log(sum(exp(x))), accumulated in double by a fixed shape.
  double (*log_sum_exp)(const float* x, int64_t n);
  // Reads every byte once (64-byte multiples) and returns a checksum: the honest bandwidth probe.
  uint64_t (*read_bytes)(const uint8_t* p, int64_t nbytes, bool prefetch);
  // At least n multiply-adds of int8, by the instructions of matmul and nothing else: the honest
  // peak of its arithmetic. Dot d is sixteen times 16 weights (the same 64 bytes, 0 to 15, four
  // times) by the 16 of kPeakActs activations from 16 * d on, which wrap. Adds all dots up in 16
  // sums, modulo 2^32, and returns how many multiply-adds that were.
  int64_t (*dot_peak)(int64_t n, const uint8_t* weights, const int8_t* acts, int32_t* sums);
};

}  // namespace pyflow
