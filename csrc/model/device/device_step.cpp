#include "model/device/device_step.h"

#include <algorithm>
#include <memory>

namespace pyflow {

void DeviceMember::multiply(std::span<const DeviceProduct> products, FloatRows x, int64_t n) {
  bool has_acts = false, has_pairs = false;
  for (const auto& [weight, y] : products) {
    const bool floats = float_inputs(weight->dtype()), fine = fine_inputs(weight->dtype());
    device::DeviceBuffer* rounded = fine ? memory.pairs : memory.acts;
    bool& has = fine ? has_pairs : has_acts;
    if (!floats && !std::exchange(has, true))
      ops.quantize(queue, x, n, weight->cols(), *rounded, fine);
    for (const DevicePiece& piece : weights.pieces(*weight)) {
      const FloatRows to = columns_of(y, piece.first_row);
      if (floats)
        ops.matmul(queue, piece.matrix, x, n, to);
      else
        ops.matmul(queue, piece.matrix, *rounded, n, to);
    }
  }
}

void DeviceMember::multiply(std::span<const ChosenProduct> products, FloatRows chosen,
                            int64_t sharing, FloatRows x, int64_t n) {
  bool has_acts = false, has_pairs = false;
  for (const auto& [series, y] : products) {
    const device::DeviceMatrix& w = series->first.matrix;
    const bool floats = float_inputs(w.dtype), fine = fine_inputs(w.dtype);
    device::DeviceBuffer* rounded = fine ? memory.pairs : memory.acts;
    bool& has = fine ? has_pairs : has_acts;
    if (!floats && !std::exchange(has, true)) ops.quantize(queue, x, n, w.cols, *rounded, fine);
    const device::Ops::Chosen of = {chosen, n * sharing, series->matrix_nbytes, sharing};
    const FloatRows to = columns_of(y, series->first.first_row);
    if (floats)
      ops.matmul(queue, w, x, of, to);
    else
      ops.matmul(queue, w, *rounded, of, to);
  }
}

void DeviceMember::multiply(const DeviceProduct& product, const Cut& cut, const float* bias,
                            FloatRows x, int64_t n) {
  multiply(std::span(&product, 1), x, n);
  add(product.y, bias, n, product.weight->rows(), rows_of(cut));
}

void DeviceMember::add(FloatRows x, const float* values, int64_t n, int64_t width,
                       const Share& own) {
  if (!values || own.size() == 0) return;
  // It is only read.
  auto& all = const_cast<device::DeviceBuffer&>(weights.vector(values, width));
  ops.add(queue, columns_of(x, own.begin), {&all, own.begin, 0}, n, own.size());
}

DeviceStep::Rows DeviceStep::take(int64_t n) {
  Rows rows;
  for (const DeviceMember& m : members) rows.push_back({m.memory.temp, taken_, padded(n)});
  taken_ += n_rows * padded(n);
  return rows;
}

DeviceStep::Rows DeviceStep::register_rows(size_t r) const {
  Rows rows;
  for (const DeviceMember& m : members) rows.push_back(m.registers[r]);
  return rows;
}

std::vector<float> DeviceStep::download(const Rows& rows, int64_t n) {
  const FloatRows& from = rows[0];
  std::vector<float> all(static_cast<size_t>(n * from.stride));
  device::Queue& queue = members[0].queue;
  const device::Drain drain(queue);  // also where poll throws
  queue.download(*from.buffer, static_cast<size_t>(from.first) * sizeof(float), all.data(),
                 all.size() * sizeof(float));
  queue.mark()->wait(poll_);
  return all;
}

std::vector<int32_t>& DeviceStep::keep(size_t n) { return kept_.emplace_back(n); }

void DeviceStep::upload(const std::vector<int32_t>& kept, const Rows& to) {
  each([&](DeviceMember& m) {
    const FloatRows& rows = to[m.number];
    m.queue.upload(kept.data(), *rows.buffer, static_cast<size_t>(rows.first) * sizeof(float),
                   kept.size() * sizeof(int32_t));
  });
}

void DeviceStep::gather(const Rows& rows, const Cut& cut, int64_t n) {
  if (members[0].own().of == 1 || cut.unit == 0) return;
  const int64_t at_once = std::max<int64_t>(1, gathers_.n_floats / cut.n);
  for (int64_t first = 0; first < n; first += at_once) {
    Rows some = rows;
    for (FloatRows& each : some) each.first += first * each.stride;
    gather_some(some, cut, std::min(at_once, n - first));
  }
}

void GatherMemory::exchange(float* all, std::span<const int64_t> n_floats) {
  std::vector<std::span<uint8_t>> pieces;
  for (const int64_t n : n_floats) {
    pieces.push_back({reinterpret_cast<uint8_t*>(all), static_cast<size_t>(n) * sizeof(float)});
    all += n;
  }
  if (ranks->exchange(RoundKind::Gather, asked, pieces[static_cast<size_t>(ranks->number())],
                      pieces))
    throw CancelledError("stopped");
}

// Through the host: devices of several drivers share no memory. Staging memory is written again
// after the next gather, whose downloads end after the uploads of this one.
void DeviceStep::gather_some(const Rows& rows, const Cut& cut, int64_t n) {
  float* staging = gathers_.staging[gathers_.next++ % 2];
  constexpr auto kFloat = static_cast<int64_t>(sizeof(float));
  const auto nbytes = [](int64_t floats) { return static_cast<size_t>(floats * kFloat); };
  std::vector<std::unique_ptr<device::Event>> ends;
  each([&](DeviceMember& m) {
    const FloatRows& all = rows[m.number];
    const Share own = m.rows_of(cut);
    float* to = staging + own.begin * n;
    if (n == 1) {
      m.queue.download(*all.buffer, nbytes(all.first + own.begin), to, nbytes(own.size()));
    } else if (own.size() > 0) {
      m.ops.copy_heads(m.queue, columns_of(all, own.begin), own.size(),
                       {m.memory.packed, 0, own.size()}, own.size(), n, 1);
      m.queue.download(*m.memory.packed, 0, to, nbytes(n * own.size()));
    }
    ends.push_back(m.queue.mark());
  });
  for (const auto& end : ends) end->wait(poll_);
  const int64_t of = members[0].own().of;
  if (gathers_.ranks) {
    std::vector<int64_t> n_floats;
    for (int64_t i = 0; i < of; ++i) n_floats.push_back(n * cut.rows_of(i, of).size());
    gathers_.exchange(staging, n_floats);
  }
  each([&](DeviceMember& m) {
    const FloatRows& all = rows[m.number];
    for (int64_t other = 0; other < of; ++other) {
      const Share its = cut.rows_of(other, of);
      if (other == m.own().number || its.size() == 0) continue;
      const float* from = staging + its.begin * n;
      if (n == 1) {
        m.queue.upload(from, *all.buffer, nbytes(all.first + its.begin), nbytes(its.size()));
        continue;
      }
      m.queue.upload(from, *m.memory.packed, 0, nbytes(n * its.size()));
      m.ops.copy_heads(m.queue, {m.memory.packed, 0, its.size()}, its.size(),
                       columns_of(all, its.begin), its.size(), n, 1);
    }
  });
}

}  // namespace pyflow
