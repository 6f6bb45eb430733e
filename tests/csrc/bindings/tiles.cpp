// Products by tiles: bf16 panels of activations, single instructions by the CPU and by the emulator,
// and what the system says to a process that asks for tiles.
#include <algorithm>
#include <cstring>
#include <string>

#include "bindings/testing.h"
#include "core/buffer.h"
#include "kernels/dispatch.h"
#include "kernels/tiles/emulator.h"
#include "kernels/tiles/emulator_tile.h"
#include "kernels/tiles/permission.h"
#include "quant/formats.def"
#include "quant/packed_tensor.h"

namespace pyflow {

#if defined(__x86_64__)
const KernelTable* kernels_amx_on_avx512() noexcept;
#endif

namespace {

// clang-format off
#include "kernels/simd/scalar.h"
#include "kernels/tiles/words.h"
#include "kernels/tiles/self_test.inl"
// clang-format on

// Rows as bf16, in memory that is poisoned where no row lies.
struct Panels {
  int64_t n_rows, k;
  Buffer values;

  Panels(const std::string& isa, const ExactFloats& rows, uint16_t poison) {
    require(rows.ndim() == 2 && rows.size() > 0, "panels: expected rows x k values, both positive");
    n_rows = rows.shape(0);
    k = rows.shape(1);
    const auto n = static_cast<size_t>(panel_values(n_rows, k));
    values = Buffer(n * sizeof(uint16_t), "panels");
    std::fill_n(values.as<uint16_t>(), n, poison);
    const KernelTable& table = table_named(isa);
    require(table.panel_row, "this table has no panels");
    for (int64_t r = 0; r < n_rows; ++r)
      table.panel_row(rows.data() + r * k, k, values.as<uint16_t>(), r);
  }
  py::array_t<uint16_t> array() const {
    return py::array_t<uint16_t>(panel_values(n_rows, k), values.as<uint16_t>());
  }
};

void prefill(const std::string& isa, const PackedTensor& w, const Panels& panels,
             py::array_t<float>& y, int64_t tile_begin, int64_t tile_end, int repeats) {
  const auto item = static_cast<py::ssize_t>(sizeof(float));
  require(panels.k == w.cols() && y.ndim() == 2 && y.shape(0) == panels.n_rows &&
              y.shape(1) >= w.tiles() * kTileRows && y.strides(1) == item &&
              y.strides(0) % item == 0 && tile_begin >= 0 && tile_end <= w.tiles(),
          "prefill: weights, panels, output and tile range do not fit together");
  MatmulArgs args{};
  args.tiles = w.data();
  args.k = panels.k;
  args.n_rows = panels.n_rows;
  args.y = y.mutable_data();
  args.y_stride = y.strides(0) / item;
  args.panels = panels.values.as<uint16_t>();
  const KernelTable& table = table_named(isa);
  const Buffer scratch(static_cast<size_t>(table.scratch_nbytes), "scratch");
  args.scratch = scratch.data();
  const auto multiply = table.prefill_matmul[static_cast<size_t>(w.dtype())];
  require(multiply, "this table has no prefill_matmul for this format");
  py::gil_scoped_release unlocked;
  for (int i = 0; i < repeats; ++i) multiply(args, tile_begin, tile_end);
}

// A unit whose sums of bf16 differ from those of AMX by their last bit.
struct Wrong : Emulated {
  template <int T>
  static inline void store(void* p, int64_t stride) {
    Emulated::store<T>(p, stride);
    *static_cast<uint8_t*>(p) ^= 1;
  }
};

// One instruction on n times three tiles, C first with `rows` rows; A has `depth` dwords in a row.
// C's tiles are replaced.
void dots(const std::string& unit, const std::string& kind, const ByteArray& a, const ByteArray& b,
          py::array_t<uint8_t, py::array::c_style>& c, int rows, int depth) {
  require(a.size() == b.size() && a.size() == c.size() && a.size() % 1024 == 0,
          "tiles have 1024 bytes");
  require(rows >= 1 && rows <= 16 && depth >= 1 && depth <= 16, "tiles have 1 to 16 rows");
  const Dot dot = kind == "s8" ? Dot::kS8 : kind == "su8" ? Dot::kSu8 : Dot::kBf16;
  const auto run = [&](auto tiles) {
    for (py::ssize_t at = 0; at < a.size(); at += 1024) {
      Operands of;
      std::memcpy(&of.a, a.data() + at, 1024);
      std::memcpy(&of.b, b.data() + at, 1024);
      std::memcpy(&of.c, c.data() + at, 1024);
      of.c = sums<decltype(tiles)>(dot, of, rows, depth);
      std::memcpy(c.mutable_data() + at, &of.c, 1024);
    }
  };
  if (unit == "emulated") return run(Emulated());
  if (unit == "plain") {
    emulator::use_avx2(false);
    run(Emulated());
    return emulator::use_avx2(true);
  }
#if defined(__x86_64__)
  kernel_table("amx");  // throws where it cannot run
  run(Hardware());
#endif
}

// What a format's header reads in a packed tensor: for each weight s, m (0 without a minimum) and
// the code q, of which kOffset is taken off; eight bits are 128 above the number with a sign.
template <class Format>
py::tuple numbers_of(const PackedTensor& w) {
  constexpr int64_t kUnit = 64 * Format::kPieces, kSubs = kUnit / Format::kSubBlock;
  const int64_t n_units = (w.cols() + kUnit - 1) / kUnit, k = n_units * kUnit;
  ExactFloats s({16 * w.tiles(), k}), m({16 * w.tiles(), k}), q({16 * w.tiles(), k});
  const uint8_t* unit = w.data();
  const auto read_quarter = [&]<int Q>(int64_t t, int64_t first, const uint8_t* piece) {
    Simd::B quads[4];
    Format::template weights<Simd, Q>(piece, quads);
    for (int i = 0; i < 256; ++i) {
      const uint8_t code = quads[i / 64].v[i % 64];
      const int64_t row = 16 * t + i % 64 / 4, col = first + 16 * Q + i / 64 * 4 + i % 4;
      q.mutable_at(row, col) = Format::kSigned ? static_cast<uint8_t>(code + 128) : code;
    }
  };
  for (int64_t t = 0; t < w.tiles(); ++t)
    for (int64_t u = 0; u < n_units; ++u, unit += Format::kUnitBytes) {
      Simd::F scales[kSubs], minimums[kSubs] = {};
      Format::template scales<Simd>(unit, scales, minimums);
      for (int64_t i = 0; i < 16 * kUnit; ++i) {
        const int64_t row = 16 * t + i % 16, in_unit = i / 16, sub = in_unit / Format::kSubBlock;
        s.mutable_at(row, u * kUnit + in_unit) = scales[sub].v[i % 16];
        m.mutable_at(row, u * kUnit + in_unit) = Format::kMinimum ? minimums[sub].v[i % 16] : 0.0f;
      }
      for (int p = 0; p < Format::kPieces; ++p) {
        const uint8_t* piece = unit + Format::kScaleBytes + p * Format::kPieceBytes;
        const int64_t first = u * kUnit + 64 * p;
        read_quarter.template operator()<0>(t, first, piece);
        read_quarter.template operator()<1>(t, first, piece);
        read_quarter.template operator()<2>(t, first, piece);
        read_quarter.template operator()<3>(t, first, piece);
      }
    }
  int offset = 128;
  if constexpr (!Format::kSigned) offset = Format::kOffset;
  return py::make_tuple(s, m, q, offset, Format::kSigned ? 256 : 128);
}

py::tuple numbers(const PackedTensor& w) {
  switch (w.dtype()) {
#define PYFLOW_FORMAT(name, id, block, bytes)                                          \
  case DType::name:                                                                    \
    if constexpr (!quant::FloatInputs<quant::name>) return numbers_of<quant::name>(w); \
    break;
#include "quant/formats.def"
#undef PYFLOW_FORMAT
  }
  throw ShapeError("numbers: expected quantized weights");
}

}  // namespace

const KernelTable& table_named(std::string_view name) {
#if defined(__x86_64__)
  if (name == "amx_on_avx512") {
    kernel_table("avx512");  // throws where its instructions are missing
    return *kernels_amx_on_avx512();
  }
#endif
  return kernel_table(name);
}

void register_tiles(py::module_& m) {
  py::class_<Panels>(m, "Panels")
      .def(py::init<const std::string&, const FloatArray&, uint16_t>(), py::arg("isa"),
           py::arg("x"), py::arg("poison") = 0)
      .def("array", &Panels::array);
  m.def("prefill", &prefill, py::arg("isa"), py::arg("weights"), py::arg("panels"),
        py::arg("y").noconvert(), py::arg("tile_begin"), py::arg("tile_end"),
        py::arg("repeats") = 1);
  m.def("tile_dots", &dots, py::arg("unit"), py::arg("kind"), py::arg("a"), py::arg("b"),
        py::arg("c").noconvert(), py::arg("rows"), py::arg("depth"));
  m.def("numbers", &numbers, py::arg("weights"));
  m.def("ask_for_tiles", &ask_for_tiles);
  m.def(
      "agrees_with_emulator",
      [](bool wrong) {
        return wrong ? agrees_with_emulator<Wrong>() : agrees_with_emulator<Emulated>();
      },
      py::arg("wrong"));
  m.def("has_prefill", [](const std::string& isa, const std::string& dtype) {
    return table_named(isa).prefill_matmul[static_cast<size_t>(dtype_of(dtype))] != nullptr;
  });
}

}  // namespace pyflow
