// Matrix products by one table and one thread: weights, activations, and what they make.
#include <cstring>
#include <optional>
#include <string>

#include "bindings/testing.h"
#include "core/buffer.h"
#include "kernels/dispatch.h"
#include "quant/packed_tensor.h"

namespace pyflow {
namespace {

void check_row(const PackedTensor& t, int64_t row) {
  if (row < 0 || row >= t.rows())
    throw py::index_error("row " + std::to_string(row) + " of " + std::to_string(t.rows()));
}

// Rows of f32 and, quantized by one table, as the blocks that matmul reads.
struct Activations {
  int64_t n_rows, k, n_kb;
  Buffer x, blocks;

  Activations(const std::string& isa, const ExactFloats& rows) {
    if (rows.ndim() != 2 || rows.size() == 0)
      throw ShapeError("activations: expected rows x k values, both positive");
    n_rows = rows.shape(0);
    k = rows.shape(1);
    n_kb = (k + kActBlock - 1) / kActBlock;
    x = Buffer(static_cast<size_t>(rows.nbytes()), "activations");
    std::memcpy(x.data(), rows.data(), x.size());
    blocks = Buffer(static_cast<size_t>(n_rows * n_kb) * sizeof(ActBlock), "activations");
    const KernelTable& table = table_named(isa);
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
  const KernelTable& table = table_named(isa);
  const Buffer scratch(static_cast<size_t>(table.scratch_nbytes), "scratch");
  args.scratch = scratch.data();
  py::gil_scoped_release unlocked;
  for (int i = 0; i < repeats; ++i)
    table.matmul[static_cast<size_t>(w.dtype())](args, tile_begin, tile_end);
}

void register_packed_tensor(py::module_& m) {
  py::class_<PackedTensor>(m, "PackedTensor")
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
             ExactFloats out(t.cols());
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

void register_matmul(py::module_& m) {
  register_packed_tensor(m);
  py::class_<Activations>(m, "Activations")
      .def(py::init<const std::string&, const FloatArray&>(), py::arg("isa"), py::arg("x"))
      .def("block", &Activations::block_bytes, py::arg("row"), py::arg("kb"));
  m.def("matmul", &matmul, py::arg("isa"), py::arg("weights"), py::arg("activations"),
        py::arg("y").noconvert(), py::arg("tile_begin"), py::arg("tile_end"),
        py::arg("repeats") = 1, py::arg("prefetch") = py::none());
  m.def(
      "read",
      [](const std::string& isa, const PackedTensor& w) {
        const KernelTable& table = table_named(isa);
        py::gil_scoped_release unlocked;
        return table.read_bytes(w.data(), static_cast<int64_t>(w.nbytes()),
                                prefetches() == Prefetch::kNear);
      },
      py::arg("isa"), py::arg("weights"), "Reads all tiles once; a checksum.");
}

}  // namespace pyflow
