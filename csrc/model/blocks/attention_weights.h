// What attention takes from a spec, its sizes and weights, and its commands on a device.
#pragma once

#include <optional>
#include <vector>

#include "model/blocks/block.h"
#include "model/blocks/row_norm.h"
#include "model/device/device_step.h"

namespace pyflow {

class AttentionWeights {
 public:
  AttentionWeights(const BlockSpec& spec, BlockContext& c);
  void device_needs(DeviceNeeds& needs) const;
  void record(DeviceStep& s) const;

 protected:
  // A norm of queries or keys, and the distance between the weights of two heads.
  struct HeadNorm {
    RowNorm norm;
    int64_t step = 0;
    explicit operator bool() const { return static_cast<bool>(norm); }
  };

  int64_t q_dim() const { return n_heads_ * head_dim_; }
  int64_t k_dim() const { return n_kv_heads_ * head_dim_; }
  int64_t v_dim() const { return n_kv_heads_ * value_dim_; }
  int64_t mixed_dim() const { return n_heads_ * value_dim_; }
  int64_t group() const { return n_heads_ / n_kv_heads_; }

  size_t in_, out_;
  int64_t n_embd_, n_heads_, n_kv_heads_, head_dim_, value_dim_;
  float scale_, softcap_;
  std::optional<size_t> rope_;
  size_t layer_;
  std::vector<float> slopes_;
  const PackedTensor *q_, *k_, *v_, *o_;
  bool values_apart_;  // v_ shares no tensor with q_ or k_
  const float *q_bias_, *k_bias_, *v_bias_, *o_bias_;
  HeadNorm q_norm_, k_norm_;
  bool norms_all_ = false;

 private:
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

}  // namespace pyflow
