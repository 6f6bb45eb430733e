#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>

#include "bindings/convert.h"
#include "core/thread_pool.h"
#include "encode/encoder.h"
#include "kernels/dispatch.h"
#include "quant/packed_tensor.h"

namespace pyflow {

namespace {

ExactFloats dequantize_array(const std::string& name, const ByteArray& data,
                             const std::vector<py::ssize_t>& shape) {
  const DType dtype = dtype_of(name);
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  check_bytes(data, dtype, rows, shape.empty() ? 1 : shape.back());
  ExactFloats out(shape);
  const uint8_t* src = data.data();
  float* dst = out.mutable_data();
  const int64_t n = out.size();
  py::gil_scoped_release unlocked;
  dequantize(dtype, src, n, dst);
  return out;
}

void check_importance(const std::optional<ExactFloats>& importance, int64_t cols) {
  if (importance && importance->size() != cols)
    throw ShapeError("importance: expected a number for each of " + std::to_string(cols) +
                     " columns, found " + std::to_string(importance->size()));
}

const EncodeTable& encode_ops(const std::string& isa) {
  return encode_table(isa.empty() ? kernel_table() : kernel_table(isa));
}

// body(begin, end) over rows of `cols` weights, with the GIL released, by the pool's threads where
// there is one. Of what it throws, the error of the first rows is thrown once all are done.
template <class Body>
void for_rows(ThreadPool* pool, int64_t rows, int64_t cols, const Body& body) {
  const py::gil_scoped_release unlocked;
  if (!pool) return body(0, rows);
  std::mutex lock;
  std::exception_ptr failure;
  int64_t failed = rows;
  const auto guarded = [&](int64_t begin, int64_t end) {
    try {
      body(begin, end);
    } catch (...) {
      const std::lock_guard locked(lock);
      if (begin < failed) failure = std::current_exception();
      failed = std::min(failed, begin);
    }
  };
  const int64_t grain = std::max<int64_t>(1, 16384 / cols);
  pool->run([&](Team& team) { team.for_each(rows, grain, guarded); });
  if (failure) std::rethrow_exception(failure);
}

// Rows of blocks of rows of floats, shared out over the pool's threads where there is one.
ByteArray quantize_array(const std::string& name, const ExactFloats& x,
                         const std::optional<ExactFloats>& importance, ThreadPool* pool,
                         const std::string& isa) {
  const DType dtype = dtype_of(name);
  if (x.ndim() == 0) throw ShapeError("quantize: expected rows of weights, found a single number");
  const int64_t cols = x.shape(x.ndim() - 1);
  check_importance(importance, cols);
  const Encoder encoder(dtype, cols, importance ? importance->data() : nullptr, encode_ops(isa));
  const int64_t rows = x.size() / cols;
  std::vector<py::ssize_t> shape(x.shape(), x.shape() + x.ndim());
  shape.back() = static_cast<py::ssize_t>(encoder.row_bytes());
  ByteArray out(shape);
  const float* src = x.data();
  uint8_t* dst = out.mutable_data();
  for_rows(pool, rows, cols, [&](int64_t begin, int64_t end) {
    encoder.encode(src + begin * cols, end - begin, begin,
                   dst + static_cast<size_t>(begin) * encoder.row_bytes());
  });
  return out;
}

Triangles triangles(int64_t cols) {
  if (cols <= 0 || cols >= int64_t{1} << 31 || cols % Triangles::kStep != 0)
    throw ShapeError("second moments: expected a multiple of 16 columns, found " +
                     std::to_string(cols));
  return Triangles(cols);
}

std::unique_ptr<Feedback> make_feedback(const ExactFloats& moments, int64_t cols, ThreadPool* pool,
                                        const std::string& isa) {
  const Triangles shape = triangles(cols);
  if (moments.ndim() != 1 || moments.size() != shape.size())
    throw ShapeError("second moments of " + std::to_string(cols) + " columns: expected " +
                     std::to_string(shape.size()) + " numbers, found " +
                     std::to_string(moments.size()));
  const EncodeTable& table = encode_ops(isa);
  const py::gil_scoped_release unlocked;
  return std::make_unique<Feedback>(moments.data(), shape, pool, table);
}

// Rows of one format's blocks as rows of another's, and what that loses.
py::tuple requantize_array(const std::string& from_name, const ByteArray& data, int64_t cols,
                           const std::string& name, const std::optional<ExactFloats>& importance,
                           int64_t first_row, ThreadPool* pool, const Feedback* feedback,
                           const std::string& isa) {
  const DType from = dtype_of(from_name), to = dtype_of(name);
  check_importance(importance, cols);
  const auto from_bytes = static_cast<py::ssize_t>(row_bytes(from, cols));
  const int64_t rows = data.nbytes() / from_bytes;
  check_bytes(data, from, rows, cols);
  const Encoder encoder(to, cols, importance ? importance->data() : nullptr, encode_ops(isa));
  ByteArray out({rows, static_cast<py::ssize_t>(encoder.row_bytes())});
  std::vector<RowLoss> losses(static_cast<size_t>(rows));
  const uint8_t* src = data.data();
  uint8_t* dst = out.mutable_data();
  if (feedback && (feedback->shape().n_cols() != cols || info(to).block == 1))
    throw ShapeError("error feedback: expected blocks of " + std::to_string(cols) +
                     " columns, found that of " + std::to_string(feedback->shape().n_cols()));
  std::optional<BlockFactors> blocks;
  if (feedback) blocks.emplace(*feedback, info(to).block);
  const auto convert = [&](int64_t begin, int64_t end) {
    const SourceRows part = {from, src + begin * from_bytes, end - begin, first_row + begin};
    uint8_t* to_rows = dst + static_cast<size_t>(begin) * encoder.row_bytes();
    RowLoss* lost = losses.data() + static_cast<size_t>(begin);
    if (feedback)
      recode(part, encoder, *feedback, *blocks, to_rows, lost);
    else
      recode(part, encoder, to_rows, lost);
  };
  for_rows(pool, rows, feedback ? 256 : cols, convert);
  RowLoss all;  // rows in order, so that threads change nothing
  for (const RowLoss& row : losses) {
    all.squared += row.squared;
    all.power += row.power;
    all.absolute += row.absolute;
    all.largest = std::max(all.largest, row.largest);
  }
  return py::make_tuple(out, py::make_tuple(all.squared, all.power, all.absolute, all.largest));
}

}  // namespace

void register_quant(py::module_& m) {
  m.def("runnable_isas", [] {
    std::vector<std::string> names;
    for (const KernelTable* t : runnable_tables()) names.emplace_back(t->name);
    return names;
  });
  m.def("weight_formats", [] {
    py::list formats;
    for (const DTypeInfo& d : kDTypes)
      formats.append(py::dict(py::arg("name") = d.name, py::arg("gguf_id") = d.gguf_id,
                              py::arg("block") = d.block, py::arg("block_bytes") = d.block_bytes,
                              py::arg("fine_inputs") = fine_inputs(d.dtype)));
    return formats;
  });
  m.def("dequantize", &dequantize_array, py::arg("dtype"), py::arg("data"), py::arg("shape"));

  m.def("quantize", &quantize_array, py::arg("dtype"), py::arg("x"),
        py::arg("importance") = py::none(), py::arg("pool") = nullptr, py::arg("isa") = "");

  m.def("requantize", &requantize_array, py::arg("from_dtype"), py::arg("data"), py::arg("columns"),
        py::arg("dtype"), py::arg("importance") = py::none(), py::arg("first_row") = 0,
        py::arg("pool") = nullptr, py::arg("feedback") = nullptr, py::arg("isa") = "");
  py::class_<Feedback>(m, "Feedback")
      .def(py::init(&make_feedback), py::arg("moments"), py::arg("columns"),
           py::arg("pool") = nullptr, py::arg("isa") = "")
      .def_static(
          "size", [](int64_t cols) { return triangles(cols).size(); }, py::arg("columns"));
}

}  // namespace pyflow
