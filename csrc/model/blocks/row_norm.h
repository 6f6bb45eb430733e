// RMS or layer norm over contiguous values, with its weights: `Norm` of
// pyflow/specs/blocks/norm.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/errors.h"
#include "kernels/table.h"
#include "model/device/device_step.h"
#include "model/weights.h"

namespace pyflow {

class RowNorm {
 public:
  RowNorm() = default;
  // weight and bias have n values; no weights are ones. Throws UnsupportedError for another type.
  RowNorm(Weights& weights, const std::string& type, float eps,
          const std::optional<TensorRef>& weight, const std::optional<TensorRef>& bias, int64_t n)
      : RowNorm(type, eps, weights.vector_or_ones(weight, n), weights.vector_or_null(bias, n)) {}
  RowNorm(const std::string& type, float eps, const float* weight, const float* bias)
      : layer_(type == "layer"), eps_(eps), weight_(weight), bias_(bias) {
    if (!layer_ && type != "rms")
      throw UnsupportedError("norm of type '" + type + "': expected rms or layer");
  }

  // y = norm of n values, with the weights from `at` on. x and y may be the same.
  void operator()(const KernelTable& kernels, const float* x, int64_t n, float* y,
                  int64_t at = 0) const {
    (layer_ ? kernels.layer_norm : kernels.rms_norm)(x, weight_ + at, eps_, n, y);
    if (bias_) kernels.add(y, bias_ + at, n);
  }

  // On a device: the vectors of n values from `at` on, and the norm of n_rows rows.
  void device_needs(DeviceNeeds& needs, int64_t n, int64_t at = 0) const {
    if (weight_) needs.vector(weight_ + at, n);
    if (bias_) needs.vector(bias_ + at, n);
  }
  void record(DeviceMember& m, FloatRows x, int64_t n_rows, int64_t n, FloatRows y,
              int64_t at = 0) const {
    const auto norm = layer_ ? &device::Ops::layer_norm : &device::Ops::rms_norm;
    (m.ops.*norm)(m.queue, x, m.weights.vector(weight_ + at, n), eps_, n_rows, n, y);
    if (bias_) m.add(y, bias_ + at, n_rows, n, {0, n});
  }

  explicit operator bool() const { return weight_ != nullptr; }

 private:
  bool layer_ = false;
  float eps_ = 0;
  const float *weight_ = nullptr, *bias_ = nullptr;
};

}  // namespace pyflow
