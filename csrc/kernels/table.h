// What an instruction set must offer: one table of functions, filled by isa.cpp and chosen once at
// run time (dispatch.h). Kernels take pointers, check nothing and cannot fail; their callers have
// checked. Same arguments give the same bits from every table.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/dtype.h"

namespace pyflow {

inline constexpr int64_t kTileRows = 16;      // output rows of a tile of weights
inline constexpr int64_t kActBlock = 64;      // activations that are stored together
inline constexpr int64_t kPanelRows = 16;     // activation rows stored side by side
inline constexpr int64_t kPanelGroup = 32;    // rows of bf16 panels are padded to a multiple of it
inline constexpr int64_t kLogicalBlock = 64;  // positions softmaxed together
inline constexpr int64_t kLogicalSpan = 512;  // positions merged together; unit of splitting work

// Sixty-four activations of one row as int8: x[i] ~ scale[i / 32] * q[i], |q| <= 127. The sums are
// for formats whose weights have an offset or a minimum.
struct alignas(32) ActBlock {
  int8_t q[64];
  float scale[2];   // of q[0..31], q[32..63]
  float fsum32[2];  // their sums, exact
  int32_t sum32[2];
  int16_t sum16[4];
};
static_assert(sizeof(ActBlock) == 96);

// Index of block kb of row r among n_rows quantized rows of n_kb blocks: panels of 16 rows, in each
// panel the blocks in order, in each block the rows side by side. With 20 rows and n_kb = 2, row 17
// is the second of a panel of 4: its block 1 is at 16 * 2 + 1 * 4 + 1 = 37.
constexpr int64_t act_index(int64_t r, int64_t kb, int64_t n_rows, int64_t n_kb) {
  const int64_t first = r / kPanelRows * kPanelRows;
  const int64_t width = n_rows - first < kPanelRows ? n_rows - first : kPanelRows;
  return first * n_kb + kb * width + (r - first);
}

// Rows of activations as bf16, for prefill_matmul: [n_rows / 16][k / 32][16 rows][32 k], a tile of
// 1 KiB for each 16 rows and 32 k, counts rounded up. Only panel_row knows the order within 32 k
// (kernels/tiles/). Memory for n_rows rows of k values takes panel_values(n_rows, k) values on a
// 64-byte border. Rows that fill up the last group need not be written: what is made of them is
// dropped, and no other row depends on them.
constexpr int64_t panel_values(int64_t n_rows, int64_t k) {
  return (n_rows + kPanelGroup - 1) / kPanelGroup * kPanelGroup * ((k + 31) / 32 * 32);
}

// How kernels fetch weights before use: not at all (left to the CPU), into the first-level cache,
// or into the second-level cache and later from there into the first.
enum class Prefetch : uint8_t { kNone, kNear, kFar };

struct MatmulArgs {
  const uint8_t* tiles;  // a packed tensor (quant/packed_tensor.h)
  int64_t k;             // columns of the weight
  const ActBlock* acts;  // n_rows rows of ceil(k / 64) blocks, for quantized weights
  const float* x;        // n_rows rows of f32, for weights with float inputs
  int64_t x_stride;      // floats between rows of x
  int64_t n_rows;
  float* y;           // n_rows rows; 16 floats per tile are written
  int64_t y_stride;   // floats between rows of y, at least 16 * number of tiles
  Prefetch prefetch;  // of more than two rows kNone is kNear (dispatch.h)
  // For prefill_matmul: the rows as bf16 panels, from the first row of these args on.
  const uint16_t* panels = nullptr;
  // KernelTable::scratch_nbytes of this thread alone, on a 64-byte border.
  uint8_t* scratch = nullptr;
};

// Keys and values of one layer. Keys of sixteen cells share a block, cells innermost, so that whole
// vectors give the scores of sixteen cells; values lie cell by cell. S = slots, a multiple of 16;
// key_dim and value_dim are cell_dim() of a model's sizes, at most kMaxHeadDim.
//   F16   k[S/16][n_kv_heads][key_dim][16] f16      v[S][n_kv_heads][value_dim] f16
//   Q8_0  k[S/16][n_kv_heads][key_dim/32]{ d[16] f16, q[32][16] i8 }
//         v[S][n_kv_heads][value_dim/32]{ d f16, q[32] i8 }
// Of latent attention values are the first value_dim of the keys, and there is no v.
inline constexpr int64_t kMaxHeadDim = 16384;
enum class CacheType : uint8_t { F16, Q8_0 };
struct KvView {
  uint8_t* k;
  uint8_t* v;
  CacheType type;
  int64_t n_kv_heads;
  int64_t key_dim;    // of queries and keys
  int64_t value_dim;  // of values and outputs
  bool values_in_keys = false;
};

// What a head takes in cells: whole vectors, for Q8_0 whole blocks. Zeros fill it up, which add
// nothing to scores; outputs there are of no use. A head of 100 takes 112, for Q8_0 128.
constexpr int64_t cell_dim(int64_t head_dim, CacheType type) {
  const int64_t unit = type == CacheType::F16 ? 16 : 32;
  return (head_dim + unit - 1) / unit * unit;
}

// The cells that a row attends to, by ascending position; positions are distinct and at least 0.
struct RowView {
  const int32_t* slots;
  const int32_t* positions;
  int64_t n;
};

struct AttendArgs {
  KvView kv;
  const float* q;  // n_rows x n_heads x key_dim
  int64_t q_stride;
  float* out;  // n_rows x n_heads x value_dim, not in the memory of q
  int64_t out_stride;
  const RowView* views;  // one per row
  int64_t n_heads;
  float scale;
  float softcap;                  // 0: none
  const float* slopes = nullptr;  // one per query head: a score gets slope * -distance; null: none
  uint8_t* scratch = nullptr;     // for prefill_attend, as in MatmulArgs
  // [n_heads][2 * bias_reach + 1], added to scores as TextArgs has them; not by prefill_attend.
  const float* bias = nullptr;
  int64_t bias_reach = 0;
  // One per query head: a score of no cell, unscaled, whose weight joins the sum of weights after
  // all spans, without a value; null: none.
  const float* sinks = nullptr;
};

// Attention among the rows of one text (encoders), all in f32: a row at position p sees the key at q
// if |q - p| < window, and every key if window is 0. Pointers are those of the text's first row.
inline constexpr int64_t kTextKeys = 16;  // rows whose keys lie side by side
struct TextArgs {
  const float* q;  // n rows of n_heads x key_dim
  int64_t q_stride;
  const float* k;  // [n / 16, rounded up][n_kv_heads][key_dim][16]: store_text_keys
  const float* v;  // n rows of n_kv_heads x value_dim; 15 floats past the last are read
  int64_t v_stride;
  float* out;  // n rows of n_heads x value_dim
  int64_t out_stride;
  int64_t n;
  int64_t n_heads, n_kv_heads, key_dim, value_dim;
  float scale;
  float softcap;  // 0: none
  int64_t window;
  const float* slopes = nullptr;  // one per query head: a score gets slope * -|q - p|; null: none
  // [n_heads][2 * bias_reach + 1], added to scores: by q - p, of larger distances that of the
  // largest; null: none.
  const float* bias = nullptr;
  int64_t bias_reach = 0;
};

// What a row's token belongs to (contract C1): a prompt, or generation and its verification. The
// two differ only for a table that has prefill_matmul and prefill_attend.
enum class Regime : uint8_t { Prefill, Decode };

// Gelu: by erf. SwigluClamped, for gates: of g' = min(g, 7) and u' = u clamped to -7 and 7 it is
// g' * sigmoid(1.702 g') * (u' + 1) (gpt-oss); without a gate the part before u'.
enum class Activation : uint8_t { Silu, Gelu, GeluTanh, Relu, SwigluClamped };

inline constexpr int64_t kPeakActs = 1024;  // fits the first-level cache, but no registers

struct KernelTable {
  const char* name;

  // By weight format: y[r][16*t..] = W[16*t..] . x[r] for tiles [tile_begin, tile_end).
  void (*matmul[kDTypeCount])(const MatmulArgs&, int64_t tile_begin, int64_t tile_end);

  // The same for rows of a prompt, from `panels`, if the table has faster arithmetic for many rows;
  // null: matmul.
  void (*prefill_matmul[kDTypeCount])(const MatmulArgs&, int64_t tile_begin, int64_t tile_end);

  // What one call of these writes beside its results.
  int64_t scratch_nbytes;

  bool has_prefill() const {
    for (const auto matmul : prefill_matmul)
      if (matmul) return true;
    return false;
  }

  // Whether the CPU's tiles give the sums of kernels/tiles/emulator.h; null without tiles.
  bool (*tiles_agree)();

  // One row of k floats to ceil(k/64) blocks, `stride` blocks apart, padded with zeros.
  void (*quantize)(const float* x, int64_t k, ActBlock* out, int64_t stride);

  // One row of k floats to row r of panels, padded with zeros; null without prefill_matmul.
  void (*panel_row)(const float* x, int64_t k, uint16_t* panels, int64_t r);

  // y = x / sqrt(mean(x^2) + eps) * weight
  void (*rms_norm)(const float* x, const float* weight, float eps, int64_t n, float* y);
  // y = (x - mean(x)) / sqrt(variance(x) + eps) * weight
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
  // Writes one head's key and value, key_dim and value_dim floats, into a cell. With values in keys
  // v is not read.
  void (*store_kv)(const KvView&, int64_t slot, int64_t kv_head, const float* k, const float* v);
  // Reads, writes all keys of a cell, n_kv_heads x key_dim floats.
  void (*load_k)(const KvView&, int64_t slot, float* k);
  void (*store_k)(const KvView&, int64_t slot, const float* k);

  // Attention of rows [row_begin, row_end) for the query heads that share kv_head, over the whole
  // view.
  void (*attend)(const AttendArgs&, int64_t row_begin, int64_t row_end, int64_t kv_head);
  // The same for one row, cut into spans of kLogicalSpan positions that several threads can share:
  // attend_span writes (n_heads / n_kv_heads) x (value_dim + 2) floats, attend_merge joins the spans
  // in order. Bitwise equal to attend.
  void (*attend_span)(const AttendArgs&, int64_t row, int64_t kv_head, int64_t span,
                      float* partial);
  void (*attend_merge)(const AttendArgs&, int64_t row, int64_t kv_head, const float* partials,
                       int64_t n_spans);
  // The same as attend for rows of a prompt, if the table has faster arithmetic for many rows; null:
  // attend. Not of cells with values in keys.
  void (*prefill_attend)(const AttendArgs&, int64_t row_begin, int64_t row_end, int64_t kv_head);

  // Keys of n <= 16 rows, `dims` values each, as TextArgs::k has them: `dims` is that of all heads.
  void (*store_text_keys)(const float* from, int64_t stride, int64_t n, int64_t dims, float* to);
  // Attention of rows [row_begin, row_end) of a text for one query head.
  void (*attend_text)(const TextArgs&, int64_t row_begin, int64_t row_end, int64_t head);

  // log(sum(exp(x))), accumulated in double in a fixed order.
  double (*log_sum_exp)(const float* x, int64_t n);
  // For measuring bandwidth: reads every byte once (nbytes a multiple of 64), returns a checksum.
  uint64_t (*read_bytes)(const uint8_t* p, int64_t nbytes, bool prefetch);
  // For measuring peak arithmetic: at least n int8 multiply-adds, by the instructions of matmul
  // alone. Dot d multiplies sixteen groups of 16 weights (the same 64 bytes, each 0 to 15, four
  // times) by the 16 activations from 16 * d on, modulo kPeakActs. All dots are added into 16 sums
  // modulo 2^32. Returns the number of multiply-adds.
  int64_t (*dot_peak)(int64_t n, const uint8_t* weights, const int8_t* acts, int32_t* sums);
};

}  // namespace pyflow
