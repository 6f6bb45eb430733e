#include "model/device/device_step.h"

namespace pyflow {

void DeviceStep::multiply(std::span<const DeviceProduct> products, FloatRows x, int64_t n) {
  bool has_acts = false, has_pairs = false;
  for (const auto& [weight, y] : products) {
    const bool floats = info(weight->dtype()).block == 1, fine = fine_inputs(weight->dtype());
    device::DeviceBuffer* rounded = fine ? memory.pairs : memory.acts;
    bool& has = fine ? has_pairs : has_acts;
    if (!floats && !std::exchange(has, true))
      ops.quantize(queue, x, n, weight->cols(), *rounded, fine);
    for (const DevicePiece& piece : weights.pieces(*weight)) {
      const FloatRows to = {y.buffer, y.first + piece.first_row, y.stride};
      if (floats)
        ops.matmul(queue, piece.matrix, x, n, to);
      else
        ops.matmul(queue, piece.matrix, *rounded, n, to);
    }
  }
}

void DeviceStep::multiply(const DeviceProduct& product, const float* bias, FloatRows x, int64_t n) {
  multiply(std::span(&product, 1), x, n);
  add(product.y, bias, n, product.weight->rows());
}

void DeviceStep::add(FloatRows x, const float* values, int64_t n, int64_t width) {
  if (!values) return;
  // It is only read.
  auto& all = const_cast<device::DeviceBuffer&>(weights.vector(values, width));
  ops.add(queue, x, {&all, 0, 0}, n, width);
}

}  // namespace pyflow
