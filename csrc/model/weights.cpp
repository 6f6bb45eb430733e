#include "model/weights.h"

#include <algorithm>
#include <vector>

#include "core/errors.h"
#include "quant/packed_tensor.h"

namespace pyflow {
namespace {

std::string shape_text(int64_t rows, int64_t cols) {
  return std::to_string(rows) + " x " + std::to_string(cols);
}

}  // namespace

const TensorRecord& Weights::record(const std::string& name, int64_t rows, int64_t cols) {
  const TensorRecord* r = source_.find(name);
  if (!r)
    throw ShapeError(source_.path + ": tensor " + name + " is missing: the model needs it as " +
                     shape_text(rows, cols));
  if (r->rows() != rows || r->cols() != cols)
    throw ShapeError(source_.path + ": tensor " + name + ": expected " + shape_text(rows, cols) +
                     ", found " + shape_text(r->rows(), r->cols()));
  used_.insert(name);
  return *r;
}

const PackedTensor& Weights::matrix(const std::string& name, int64_t rows, int64_t cols) {
  const TensorRecord& r = record(name, rows, cols);
  Matrix& m = matrices_[name];
  if (!m.packed) {
    m = {&r, std::make_unique<PackedTensor>(r.dtype, rows, cols)};
    in_order_.push_back(&m);
  }
  return *m.packed;
}

const float* Weights::vector(const std::string& name, int64_t n) {
  const TensorRecord& r = record(name, 1, n);
  Buffer& buffer = vectors_[name];
  if (!buffer.data()) {
    buffer = Buffer(static_cast<size_t>(n) * sizeof(float), name.c_str());
    dequantize(r.dtype, r.data, n, buffer.as<float>());
  }
  return buffer.as<float>();
}

void Weights::pack(ThreadPool& pool, const std::function<void()>& poll) {
  size_t total = 0;
  for (const Matrix* m : in_order_) total += m->packed->nbytes();
  arena_ = Buffer(total, "weights");
  uint8_t* at = arena_.data();
  for (Matrix* m : in_order_) {
    poll();
    m->packed->place(at);
    at += m->packed->nbytes();
    const int64_t tiles = m->packed->tiles();
    pool.run([&](Team& team) {
      team.for_each(
          tiles, std::max<int64_t>(1, tiles / (8 * team.size())),
          [&](int64_t begin, int64_t end) { m->packed->pack_tiles(m->record->data, begin, end); });
    });
    source_.release(*m->record);
  }
}

std::vector<std::span<const uint8_t>> Weights::parts() const {
  std::vector<std::span<const uint8_t>> parts;
  for (const Matrix* m : in_order_) parts.emplace_back(m->packed->data(), m->packed->nbytes());
  for (const auto& [name, v] : vectors_) parts.emplace_back(v.data(), v.size());
  return parts;
}

size_t Weights::nbytes() const {
  size_t n = 0;
  for (const auto part : parts()) n += part.size();
  return n;
}

}  // namespace pyflow
