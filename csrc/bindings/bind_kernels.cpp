// The kernel tables, one function at a time, for tests: _core.testing. Arrays are used in place and
// never converted, so a test can poison what lies around them and can point rows into one array.
#include <optional>
#include <string>
#include <vector>

#include "bindings/bind.h"
#include "core/errors.h"
#include "kernels/dispatch.h"
#include "model/activation.h"

namespace pyflow {
namespace {

using Floats = py::array_t<float, py::array::c_style>;
using Ints = py::array_t<int32_t, py::array::c_style>;
using Bytes = py::array_t<uint8_t, py::array::c_style>;

void require(bool condition, const char* what) {
  if (!condition) throw ShapeError(what);
}

CacheType cache_type(const std::string& name) {
  if (name == "f16") return CacheType::F16;
  if (name == "q8_0") return CacheType::Q8_0;
  throw UnsupportedError("cache type " + name + ": expected f16 or q8_0");
}

// One layer's cells over two byte arrays of the test's.
struct Cells {
  Bytes k, v;
  KvView view;
  int64_t n_slots;

  Cells(Bytes k_bytes, Bytes v_bytes, const std::string& type, int64_t n_kv_heads, int64_t head_dim)
      : k(std::move(k_bytes)), v(std::move(v_bytes)) {
    view = {k.mutable_data(), v.mutable_data(), cache_type(type), n_kv_heads, head_dim};
    const bool f16 = view.type == CacheType::F16;
    require(n_kv_heads > 0 && head_dim > 0 && head_dim % (f16 ? 16 : 32) == 0,
            "head_dim is a multiple of 16, for q8_0 of 32");
    const int64_t cell = n_kv_heads * (f16 ? head_dim * 2 : head_dim / 32 * 34);
    n_slots = v.size() / cell;
    require(v.size() == n_slots * cell && k.size() == v.size() && n_slots % 16 == 0,
            "k and v hold the same number of cells, a multiple of 16");
  }
  void check_slot(int64_t slot) const { require(slot >= 0 && slot < n_slots, "slot out of range"); }
};

// The arguments of attention over rows q[n_rows, n_heads * head_dim], and what keeps them alive.
struct Attention {
  const KernelTable& table;
  std::vector<RowView> views;
  AttendArgs args;

  Attention(const std::string& isa, const Cells& cells, const Floats& q, Floats* out,
            const std::vector<std::pair<Ints, Ints>>& rows, int64_t n_heads, float scale,
            float softcap, const std::optional<Floats>& slopes = std::nullopt)
      : table(kernel_table(isa)) {
    const int64_t width = n_heads * cells.view.head_dim;
    require(n_heads > 0 && n_heads % cells.view.n_kv_heads == 0,
            "n_heads is a multiple of n_kv_heads");
    require(q.ndim() == 2 && q.shape(0) == static_cast<int64_t>(rows.size()) && q.shape(1) >= width,
            "q has a row per view");
    for (const auto& [slots, positions] : rows) {
      require(slots.size() == positions.size(), "a view has as many slots as positions");
      for (int64_t i = 0; i < slots.size(); ++i) {
        cells.check_slot(slots.data()[i]);
        require(positions.data()[i] > (i ? positions.data()[i - 1] : -1), "positions ascend");
      }
      views.push_back({slots.data(), positions.data(), slots.size()});
    }
    if (out)
      require(out->ndim() == 2 && out->shape(0) == q.shape(0) && out->shape(1) >= width,
              "out has q's rows");
    args = {cells.view,
            q.data(),
            q.shape(1),
            out ? out->mutable_data() : nullptr,
            out ? out->shape(1) : 0,
            views.data(),
            n_heads,
            scale,
            softcap,
            slopes ? slopes->data() : nullptr};
    require(!slopes || slopes->size() == n_heads, "slopes has one per head");
  }
  void check(int64_t row, int64_t kv_head) const {
    require(row >= 0 && row < static_cast<int64_t>(views.size()), "row out of range");
    require(kv_head >= 0 && kv_head < args.kv.n_kv_heads, "kv_head out of range");
  }
  int64_t partial_size() const {
    return args.n_heads / args.kv.n_kv_heads * (args.kv.head_dim + 2);
  }
};

void register_elementwise(py::module_& m) {
  for (const auto& [name, norm] : {std::pair("rms_norm", &KernelTable::rms_norm),
                                   std::pair("layer_norm", &KernelTable::layer_norm)})
    m.def(
        name,
        [norm](const std::string& isa, const Floats& x, const Floats& weight, float eps,
               Floats& y) {
          require(x.size() == weight.size() && x.size() == y.size(),
                  "x, weight and y differ in size");
          (kernel_table(isa).*norm)(x.data(), weight.data(), eps, x.size(), y.mutable_data());
        },
        py::arg("isa"), py::arg("x").noconvert(), py::arg("weight").noconvert(), py::arg("eps"),
        py::arg("y").noconvert());
  m.def(
      "add",
      [](const std::string& isa, Floats& x, const Floats& y) {
        require(x.size() == y.size(), "x and y differ in size");
        kernel_table(isa).add(x.mutable_data(), y.data(), x.size());
      },
      py::arg("isa"), py::arg("x").noconvert(), py::arg("y").noconvert());
  m.def(
      "add_scaled",
      [](const std::string& isa, Floats& x, const Floats& y, float s) {
        require(x.size() == y.size(), "x and y differ in size");
        kernel_table(isa).add_scaled(x.mutable_data(), y.data(), s, x.size());
      },
      py::arg("isa"), py::arg("x").noconvert(), py::arg("y").noconvert(), py::arg("s"));
  m.def(
      "activate",
      [](const std::string& isa, const std::string& name, Floats& x) {
        kernel_table(isa).activate(activation_named(name), x.mutable_data(), x.size());
      },
      py::arg("isa"), py::arg("activation"), py::arg("x").noconvert());
  m.def(
      "scale",
      [](const std::string& isa, Floats& x, float s) {
        kernel_table(isa).scale(x.mutable_data(), s, x.size());
      },
      py::arg("isa"), py::arg("x").noconvert(), py::arg("s"));
  m.def(
      "softcap",
      [](const std::string& isa, Floats& x, float cap) {
        kernel_table(isa).softcap(x.mutable_data(), cap, x.size());
      },
      py::arg("isa"), py::arg("x").noconvert(), py::arg("cap"));
  m.def(
      "gate",
      [](const std::string& isa, const std::string& name, Floats& gate, const Floats& up) {
        require(gate.size() == up.size(), "gate and up differ in size");
        kernel_table(isa).gate(activation_named(name), gate.mutable_data(), up.data(), gate.size());
      },
      py::arg("isa"), py::arg("activation"), py::arg("gate").noconvert(),
      py::arg("up").noconvert());
  m.def(
      "rope",
      [](const std::string& isa, Floats& head, const Floats& cos_sin, bool interleaved) {
        require(cos_sin.size() % 2 == 0 && cos_sin.size() <= head.size(),
                "more pairs than the head");
        kernel_table(isa).rope(head.mutable_data(), cos_sin.data(), cos_sin.size() / 2,
                               interleaved);
      },
      py::arg("isa"), py::arg("head").noconvert(), py::arg("cos_sin").noconvert(),
      py::arg("interleaved"));
  m.def(
      "log_sum_exp",
      [](const std::string& isa, const Floats& x) {
        return kernel_table(isa).log_sum_exp(x.data(), x.size());
      },
      py::arg("isa"), py::arg("x").noconvert());
  m.def(
      "read_bytes",
      [](const std::string& isa, const Bytes& p, bool prefetch) {
        require(p.size() % 64 == 0, "a multiple of 64 bytes");
        return kernel_table(isa).read_bytes(p.data(), p.size(), prefetch);
      },
      py::arg("isa"), py::arg("p").noconvert(), py::arg("prefetch"));
  m.def(
      "dot_peak",
      [](const std::string& isa, int64_t n, const Bytes& weights,
         const py::array_t<int8_t, py::array::c_style>& acts) {
        require(weights.size() == 64 && acts.size() == kPeakActs, "64 weights, 1024 activations");
        Ints sums(16);
        const int64_t done =
            kernel_table(isa).dot_peak(n, weights.data(), acts.data(), sums.mutable_data());
        return py::make_tuple(done, sums);
      },
      py::arg("isa"), py::arg("n"), py::arg("weights").noconvert(), py::arg("acts").noconvert());
}

void register_cells(py::module_& m) {
  py::class_<Cells>(m, "Cells")
      .def(py::init<Bytes, Bytes, const std::string&, int64_t, int64_t>(), py::arg("k").noconvert(),
           py::arg("v").noconvert(), py::arg("type"), py::arg("n_kv_heads"), py::arg("head_dim"))
      .def(
          "store_kv",
          [](Cells& c, const std::string& isa, int64_t slot, const Floats& k, const Floats& v) {
            const int64_t n = c.view.n_kv_heads * c.view.head_dim;
            require(k.size() == n && v.size() == n, "k and v are n_kv_heads x head_dim");
            c.check_slot(slot);
            const int64_t dim = c.view.head_dim;
            for (int64_t h = 0; h < c.view.n_kv_heads; ++h)
              kernel_table(isa).store_kv(c.view, slot, h, k.data() + h * dim, v.data() + h * dim);
          },
          py::arg("isa"), py::arg("slot"), py::arg("k").noconvert(), py::arg("v").noconvert())
      .def(
          "store_k",
          [](Cells& c, const std::string& isa, int64_t slot, const Floats& k) {
            require(k.size() == c.view.n_kv_heads * c.view.head_dim, "k is n_kv_heads x head_dim");
            c.check_slot(slot);
            kernel_table(isa).store_k(c.view, slot, k.data());
          },
          py::arg("isa"), py::arg("slot"), py::arg("k").noconvert())
      .def(
          "load_k",
          [](const Cells& c, const std::string& isa, int64_t slot) {
            c.check_slot(slot);
            Floats k({c.view.n_kv_heads, c.view.head_dim});
            kernel_table(isa).load_k(c.view, slot, k.mutable_data());
            return k;
          },
          py::arg("isa"), py::arg("slot"));
}

void register_attention(py::module_& m) {
  using Rows = std::vector<std::pair<Ints, Ints>>;
  m.def(
      "attend",
      [](const std::string& isa, const Cells& cells, const Floats& q, Floats& out, const Rows& rows,
         int64_t n_heads, float scale, float softcap, int64_t row_begin, int64_t row_end,
         int64_t kv_head, const std::optional<Floats>& slopes) {
        const Attention a(isa, cells, q, &out, rows, n_heads, scale, softcap, slopes);
        a.check(row_begin, kv_head);
        a.check(row_end - 1, kv_head);
        py::gil_scoped_release release;
        a.table.attend(a.args, row_begin, row_end, kv_head);
      },
      py::arg("isa"), py::arg("cells"), py::arg("q").noconvert(), py::arg("out").noconvert(),
      py::arg("rows"), py::arg("n_heads"), py::arg("scale"), py::arg("softcap"),
      py::arg("row_begin"), py::arg("row_end"), py::arg("kv_head"), py::arg("slopes") = py::none());
  m.def(
      "attend_span",
      [](const std::string& isa, const Cells& cells, const Floats& q, const Rows& rows,
         int64_t n_heads, float scale, float softcap, int64_t row, int64_t kv_head, int64_t span,
         const std::optional<Floats>& slopes) {
        const Attention a(isa, cells, q, nullptr, rows, n_heads, scale, softcap, slopes);
        a.check(row, kv_head);
        Floats partial(a.partial_size());
        a.table.attend_span(a.args, row, kv_head, span, partial.mutable_data());
        return partial;
      },
      py::arg("isa"), py::arg("cells"), py::arg("q").noconvert(), py::arg("rows"),
      py::arg("n_heads"), py::arg("scale"), py::arg("softcap"), py::arg("row"), py::arg("kv_head"),
      py::arg("span"), py::arg("slopes") = py::none());
  m.def(
      "attend_merge",
      [](const std::string& isa, const Cells& cells, const Floats& q, Floats& out, const Rows& rows,
         int64_t n_heads, int64_t row, int64_t kv_head, const Floats& partials) {
        const Attention a(isa, cells, q, &out, rows, n_heads, 0.0f, 0.0f);
        a.check(row, kv_head);
        require(partials.size() % a.partial_size() == 0, "partials of whole spans");
        a.table.attend_merge(a.args, row, kv_head, partials.data(),
                             partials.size() / a.partial_size());
      },
      py::arg("isa"), py::arg("cells"), py::arg("q").noconvert(), py::arg("out").noconvert(),
      py::arg("rows"), py::arg("n_heads"), py::arg("row"), py::arg("kv_head"),
      py::arg("partials").noconvert());
}

}  // namespace

void register_kernels(py::module_& m) {
  py::module_ testing = m.def_submodule("testing");
  register_elementwise(testing);
  register_cells(testing);
  register_attention(testing);
}

}  // namespace pyflow
