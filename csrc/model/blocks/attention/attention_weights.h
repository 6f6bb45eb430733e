// What attention takes from a spec, its sizes and weights, and its commands on a device.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "model/blocks/block.h"
#include "model/blocks/row_norm.h"
#include "model/device/device_step.h"

namespace pyflow {

// Heads of the rows of a step.
struct Heads {
  float* rows;
  int64_t stride, dim;  // floats between rows, between heads

  float* at(int64_t row, int64_t head) const { return rows + row * stride + head * dim; }
};

// Copies heads [first, last) of a row, cut or filled up with zeros; nothing to do if both are one.
inline void copy_heads(const Heads& from, const Heads& to, int64_t row, int64_t first,
                       int64_t last) {
  if (from.rows == to.rows) return;
  const int64_t n = std::min(from.dim, to.dim);
  for (int64_t h = first; h < last; ++h)
    std::fill_n(std::copy_n(from.at(row, h), n, to.at(row, h)), to.dim - n, 0.0f);
}

// Queries grow with their positions: q *= 1 + beta * ln(1 + floor((p + offset) / length)).
struct Temperature {
  double beta = 0;  // 0: none
  int64_t length = 1, offset = 0;

  Temperature() = default;
  explicit Temperature(const BlockSpec& spec);
  explicit operator bool() const { return beta != 0; }
  float at(int64_t position) const;
};

// Whose keys and values rows see: those of their own text, cached by this layer, by an earlier one,
// or not at all, or those of a source.
enum class Sees : uint8_t { Cells, CellsOfLayer, WholeText, Source };

class AttentionWeights {
 public:
  AttentionWeights(const BlockSpec& spec, BlockContext& c);
  void device_needs(DeviceNeeds& needs) const;
  void record(DeviceStep& s) const;

 protected:
  // A norm of queries or keys, and the distance between the weights of two heads.
  struct HeadNorm {
    RowNorm norm;
    int64_t step = 0, first = 0;  // first: the head that is this member's first one
    explicit operator bool() const { return static_cast<bool>(norm); }
  };

  // Bias and norm of all queries or keys of a row together.
  static void normalize_all(const Step& s, float* heads, int64_t n, const float* bias,
                            const HeadNorm& norm);
  // Bias, norm and rotation of heads [first, last) of one row's queries or keys.
  void turn(const Step& s, int64_t row, const Heads& heads, int64_t first, int64_t last,
            const float* bias, const HeadNorm& norm) const;

  // Of all members' heads.
  int64_t q_dim() const { return whole_.n_heads * head_dim_; }
  int64_t k_dim() const { return whole_.n_kv_heads * head_dim_; }
  int64_t v_dim() const { return whole_.n_kv_heads * value_dim_; }
  int64_t mixed_dim() const { return whole_.n_heads * value_dim_; }
  // Of a member, as many query heads share a kv head.
  int64_t group() const { return n_heads_ / n_kv_heads_; }

  size_t in_, out_;
  int64_t n_embd_, n_heads_, n_kv_heads_, head_dim_, value_dim_;  // heads: of this member
  struct {
    int64_t n_heads, n_kv_heads;
  } whole_;
  Share own_q_, own_kv_;                  // its heads
  Shares mixed_, all_q_, all_k_, all_v_;  // columns of all members
  Shares embd_;                           // of the output
  float scale_, softcap_;
  std::optional<size_t> rope_;
  Temperature temperature_;
  Sees sees_;
  int64_t window_;
  bool chunked_;
  size_t layer_;
  // Where rows carry keys and values, those of all members, to layers of other stages that share
  // them: this layer writes them there, or takes them from there (given_). -1: nowhere.
  int64_t kv_at_ = -1;
  bool given_ = false;
  std::vector<float> slopes_;
  const float* sinks_;
  std::vector<float> biases_;  // of scores, as TextArgs has them
  int64_t bias_reach_ = 0;
  const PackedTensor *q_, *k_ = nullptr, *v_ = nullptr,
                          *o_;  // k_ and v_ may be one; null: cells of another layer
  bool values_apart_ = false;   // v_ shares no tensor with q_ or k_
  const float *q_bias_, *k_bias_ = nullptr, *v_bias_ = nullptr, *o_bias_;
  HeadNorm q_norm_, k_norm_, v_norm_;
  bool norms_all_ = false;

 private:
  void check_source(const BlockSpec& spec) const;
  void take_inputs(Weights& w, const BlockSpec& spec, BlockFacts& facts);
  LayerKv cells() const;
  // The cells of an earlier layer. Throws ShapeError unless it has some like these.
  size_t cells_of(int64_t layer, const BlockFacts& facts) const;
  void add_facts(BlockFacts& facts) const;
  void take_biases(Weights& w, const BlockSpec& spec);
  // Which heads each member has; then what is by head is cut to its own.
  void share(const Membership& member);
  void take_own();
  HeadNorm head_norm(Weights& w, const BlockSpec& spec, const char* weight, const char* bias,
                     int64_t n_heads) const;
  // Columns of queries and of mixed values stay with the kv head that they share.
  Cut q_cut() const { return {q_dim(), group() * head_dim_}; }
  Cut k_cut() const { return {k_dim(), head_dim_}; }
  Cut v_cut() const { return {v_dim(), value_dim_}; }
  Cut mixed_cut() const { return {mixed_dim(), group() * value_dim_}; }
  // Products and biases; norms over all heads.
  void record_inputs(DeviceStep& s, const DeviceStep::Rows& q, const DeviceStep::Rows& k,
                     const DeviceStep::Rows& v) const;
  // Norm and rotation of some of n_heads, as turn().
  void record_turn(DeviceMember& m, const FloatRows& rows, int64_t n_heads, const Share& heads,
                   const HeadNorm& norm) const;
};

// Attention to the whole text (full_attention.cpp), and to a source (cross_attention.cpp).
std::unique_ptr<Block> make_full_attention(const BlockSpec&, BlockContext&);
std::unique_ptr<Block> make_cross_attention(const BlockSpec&, BlockContext&);

}  // namespace pyflow
