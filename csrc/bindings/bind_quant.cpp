#include <algorithm>
#include <cstring>
#include <exception>
#include <mutex>
#include <optional>

#include "bindings/bind.h"
#include "core/errors.h"
#include "core/thread_pool.h"
#include "encode/encoder.h"
#include "kernels/dispatch.h"
#include "quant/packed_tensor.h"

namespace pyflow {

DType dtype_of(const std::string& name) {
  std::string known;
  for (const DTypeInfo& d : kDTypes) {
    if (d.name == name) return d.dtype;
    known += (known.empty() ? "" : ", ") + std::string(d.name);
  }
  throw UnsupportedError("weight format " + name + ": not one of " + known);
}

namespace {

using ByteArray = py::array_t<uint8_t, py::array::c_style>;
using FloatArray = py::array_t<float, py::array::c_style>;

void check_bytes(const ByteArray& data, DType dtype, int64_t rows, int64_t cols) {
  const size_t expected = static_cast<size_t>(rows) * row_bytes(dtype, cols);
  if (static_cast<size_t>(data.nbytes()) != expected)
    throw ShapeError(std::to_string(rows) + " x " + std::to_string(cols) + " weights of " +
                     std::string(info(dtype).name) + ": expected " + std::to_string(expected) +
                     " bytes, found " + std::to_string(data.nbytes()));
}

FloatArray dequantize_array(const std::string& name, const ByteArray& data,
                            const std::vector<py::ssize_t>& shape) {
  const DType dtype = dtype_of(name);
  int64_t rows = 1;
  for (size_t i = 0; i + 1 < shape.size(); ++i) rows *= shape[i];
  check_bytes(data, dtype, rows, shape.empty() ? 1 : shape.back());
  FloatArray out(shape);
  const uint8_t* src = data.data();
  float* dst = out.mutable_data();
  const int64_t n = out.size();
  py::gil_scoped_release unlocked;
  dequantize(dtype, src, n, dst);
  return out;
}

void check_importance(const std::optional<FloatArray>& importance, int64_t cols) {
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
ByteArray quantize_array(const std::string& name, const FloatArray& x,
                         const std::optional<FloatArray>& importance, ThreadPool* pool,
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

std::unique_ptr<Feedback> make_feedback(const FloatArray& moments, int64_t cols, ThreadPool* pool,
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
                           const std::string& name, const std::optional<FloatArray>& importance,
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
    const uint8_t* from_rows = src + begin * from_bytes;
    uint8_t* to_rows = dst + static_cast<size_t>(begin) * encoder.row_bytes();
    RowLoss* lost = losses.data() + static_cast<size_t>(begin);
    if (feedback)
      recode(from, from_rows, end - begin, first_row + begin, encoder, *feedback, *blocks, to_rows,
             lost);
    else
      recode(from, from_rows, end - begin, first_row + begin, encoder, to_rows, lost);
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

void check_row(const PackedTensor& t, int64_t row) {
  if (row < 0 || row >= t.rows())
    throw py::index_error("row " + std::to_string(row) + " of " + std::to_string(t.rows()));
}

// Rows of f32 and, quantized by one table, as the blocks that matmul reads.
struct Activations {
  int64_t n_rows, k, n_kb;
  Buffer x, blocks;

  Activations(const std::string& isa, const FloatArray& rows) {
    if (rows.ndim() != 2 || rows.size() == 0)
      throw ShapeError("activations: expected rows x k values, both positive");
    n_rows = rows.shape(0);
    k = rows.shape(1);
    n_kb = (k + kActBlock - 1) / kActBlock;
    x = Buffer(static_cast<size_t>(rows.nbytes()), "activations");
    std::memcpy(x.data(), rows.data(), x.size());
    blocks = Buffer(static_cast<size_t>(n_rows * n_kb) * sizeof(ActBlock), "activations");
    const KernelTable& table = kernel_table(isa);
    for (int64_t r = 0; r < n_rows; ++r)
      table.quantize(x.as<float>() + r * k, k,
                     blocks.as<ActBlock>() + act_index(r, 0, n_rows, n_kb),
                     act_index(r, 1, n_rows, n_kb) - act_index(r, 0, n_rows, n_kb));
  }

  py::array_t<uint8_t> block_bytes(int64_t row, int64_t kb) const {
    if (row < 0 || row >= n_rows || kb < 0 || kb >= n_kb) throw py::index_error("no such block");
    const ActBlock* block = blocks.as<ActBlock>() + act_index(row, kb, n_rows, n_kb);
    return py::array_t<uint8_t>(sizeof(ActBlock), reinterpret_cast<const uint8_t*>(block));
  }
};

void matmul(const std::string& isa, const PackedTensor& w, const Activations& a,
            py::array_t<float>& y, int64_t tile_begin, int64_t tile_end, int repeats,
            const std::optional<std::string>& prefetch) {
  const auto item = static_cast<py::ssize_t>(sizeof(float));
  if (a.k != w.cols() || y.ndim() != 2 || y.shape(0) != a.n_rows ||
      y.shape(1) < w.tiles() * kTileRows || y.strides(1) != item || y.strides(0) % item != 0 ||
      tile_begin < 0 || tile_end > w.tiles())
    throw ShapeError("matmul: weights, activations, output and tile range do not fit together");
  MatmulArgs args{};
  args.tiles = w.data();
  args.k = a.k;
  args.acts = a.blocks.as<ActBlock>();
  args.x = a.x.as<float>();
  args.x_stride = a.k;
  args.n_rows = a.n_rows;
  args.y = y.mutable_data();
  args.y_stride = y.strides(0) / item;
  args.prefetch = prefetch ? prefetch_of(*prefetch) : prefetches();
  const KernelTable& table = kernel_table(isa);
  py::gil_scoped_release unlocked;
  for (int i = 0; i < repeats; ++i)
    table.matmul[static_cast<size_t>(w.dtype())](args, tile_begin, tile_end);
}

void register_packed_tensor(py::module_& testing) {
  py::class_<PackedTensor>(testing, "PackedTensor")
      .def(py::init([](const std::string& name, const ByteArray& data, int64_t rows, int64_t cols) {
             const DType dtype = dtype_of(name);
             check_bytes(data, dtype, rows, cols);
             return PackedTensor::pack(data.data(), rows, cols, dtype);
           }),
           py::arg("dtype"), py::arg("data"), py::arg("rows"), py::arg("cols"))
      .def_property_readonly("rows", &PackedTensor::rows)
      .def_property_readonly("cols", &PackedTensor::cols)
      .def_property_readonly("tiles", &PackedTensor::tiles)
      .def_property_readonly("nbytes", &PackedTensor::nbytes)
      .def("dequantize_row",
           [](const PackedTensor& t, int64_t row) {
             check_row(t, row);
             FloatArray out(t.cols());
             t.dequantize_row(row, out.mutable_data());
             return out;
           })
      .def("unpack_row", [](const PackedTensor& t, int64_t row) {
        check_row(t, row);
        ByteArray out(static_cast<py::ssize_t>(row_bytes(t.dtype(), t.cols())));
        t.unpack_row(row, out.mutable_data());
        return out;
      });
}

}  // namespace

// Kernels are exposed one by one only to hold them to their definitions and to time them.
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

  py::module_ testing = m.def_submodule("testing");
  register_packed_tensor(testing);
  py::class_<Activations>(testing, "Activations")
      .def(py::init<const std::string&, const FloatArray&>(), py::arg("isa"), py::arg("x"))
      .def("block", &Activations::block_bytes, py::arg("row"), py::arg("kb"));
  testing.def("matmul", &matmul, py::arg("isa"), py::arg("weights"), py::arg("activations"),
              py::arg("y").noconvert(), py::arg("tile_begin"), py::arg("tile_end"),
              py::arg("repeats") = 1, py::arg("prefetch") = py::none());
  testing.def(
      "read",
      [](const std::string& isa, const PackedTensor& w) {
        const KernelTable& table = kernel_table(isa);
        py::gil_scoped_release unlocked;
        return table.read_bytes(w.data(), static_cast<int64_t>(w.nbytes()),
                                prefetches() == Prefetch::kNear);
      },
      py::arg("isa"), py::arg("weights"), "Reads all tiles once; a checksum.");
}

}  // namespace pyflow
