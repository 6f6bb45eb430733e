// The kernels of the KV cache: cells in arrays of the test's, and attention over them.
#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/testing.h"
#include "core/buffer.h"
#include "kernels/dispatch.h"

namespace pyflow {
namespace {

// One layer's cells over two byte arrays; values are in keys if the second one is empty.
struct Cells {
  ByteArray k, v;
  KvView view;
  int64_t n_slots;

  Cells(ByteArray k_bytes, ByteArray v_bytes, const std::string& type, int64_t n_kv_heads,
        int64_t key_dim, int64_t value_dim)
      : k(std::move(k_bytes)), v(std::move(v_bytes)) {
    view = {k.mutable_data(), v.mutable_data(), cache_type(type), n_kv_heads, key_dim, value_dim};
    view.values_in_keys = v.size() == 0;
    const bool f16 = view.type == CacheType::F16;
    const auto fills = [&](int64_t dim) { return dim > 0 && cell_dim(dim, view.type) == dim; };
    require(n_kv_heads > 0 && fills(key_dim) && fills(value_dim),
            "key_dim and value_dim are multiples of 16, for q8_0 of 32");
    const auto cell = [&](int64_t dim) { return n_kv_heads * (f16 ? dim * 2 : dim / 32 * 34); };
    n_slots = k.size() / cell(key_dim);
    require((view.values_in_keys ? value_dim <= key_dim : v.size() == n_slots * cell(value_dim)) &&
                k.size() == n_slots * cell(key_dim) && n_slots % 16 == 0,
            "k and v hold the same number of cells, a multiple of 16");
  }
  void check_slot(int64_t slot) const { require(slot >= 0 && slot < n_slots, "slot out of range"); }

  void store_kv(const std::string& isa, int64_t slot, const ExactFloats& k_row,
                const ExactFloats& v_row) {
    require(k_row.size() == view.n_kv_heads * view.key_dim &&
                v_row.size() == view.n_kv_heads * view.value_dim,
            "k and v are n_kv_heads x key_dim and value_dim");
    check_slot(slot);
    for (int64_t h = 0; h < view.n_kv_heads; ++h)
      kernel_table(isa).store_kv(view, slot, h, k_row.data() + h * view.key_dim,
                                 v_row.data() + h * view.value_dim);
  }
  void store_k(const std::string& isa, int64_t slot, const ExactFloats& k_row) {
    require(k_row.size() == view.n_kv_heads * view.key_dim, "k is n_kv_heads x key_dim");
    check_slot(slot);
    kernel_table(isa).store_k(view, slot, k_row.data());
  }
  ExactFloats load_k(const std::string& isa, int64_t slot) const {
    check_slot(slot);
    ExactFloats out({view.n_kv_heads, view.key_dim});
    kernel_table(isa).load_k(view, slot, out.mutable_data());
    return out;
  }
};

using Rows = std::vector<std::pair<ExactInts, ExactInts>>;  // slots and positions that a row sees

// Attention of rows q[n_rows, n_heads * key_dim] over cells. slopes: one per head, or for each head
// 2 n + 1 biases by distance.
class Attention {
 public:
  Attention(const std::string& isa, Cells cells, ExactFloats q, Rows rows, int64_t n_heads,
            float scale, float softcap, std::optional<ExactFloats> slopes)
      : table_(table_named(isa)),
        cells_(std::move(cells)),
        q_(std::move(q)),
        rows_(std::move(rows)),
        slopes_(std::move(slopes)) {
    require(n_heads > 0 && n_heads % cells_.view.n_kv_heads == 0,
            "n_heads is a multiple of n_kv_heads");
    const bool by_table = slopes_ && slopes_->ndim() == 2;
    require(!slopes_ || slopes_->shape(0) == n_heads, "slopes has one, or a row, per head");
    require(!by_table || slopes_->shape(1) % 2 == 1, "biases of distances -n to n");
    for (const auto& [slots, positions] : rows_) {
      require(slots.size() == positions.size(), "a view has as many slots as positions");
      for (int64_t i = 0; i < slots.size(); ++i) {
        cells_.check_slot(slots.data()[i]);
        require(positions.data()[i] > (i ? positions.data()[i - 1] : -1), "positions ascend");
      }
      views_.push_back({slots.data(), positions.data(), slots.size()});
    }
    args_.kv = cells_.view;
    args_.q = q_.data();
    args_.views = views_.data();
    args_.n_heads = n_heads;
    args_.scale = scale;
    args_.softcap = softcap;
    args_.slopes = slopes_ && !by_table ? slopes_->data() : nullptr;
    args_.bias = by_table ? slopes_->data() : nullptr;
    args_.bias_reach = by_table ? slopes_->shape(1) / 2 : 0;
    args_.q_stride = stride_of(q_, cells_.view.key_dim);
  }

  // One score per head.
  void add_sinks(ExactFloats sinks) {
    require(sinks.size() == args_.n_heads, "sinks has one per head");
    sinks_ = std::move(sinks);
    args_.sinks = sinks_->data();
  }

  // Of a prompt if the table has attention of its own for prompts.
  void attend(ExactFloats& out, int64_t row_begin, int64_t row_end, int64_t kv_head,
              bool prefill) const {
    check(row_begin, kv_head);
    check(row_end - 1, kv_head);
    require(!prefill || table_.prefill_attend, "this table has no prefill_attend");
    Buffer scratch(static_cast<size_t>(table_.scratch_nbytes), "scratch");
    std::fill_n(scratch.data(), scratch.size(), uint8_t{0xff});  // NaNs
    AttendArgs args = into(out);
    args.scratch = scratch.data();
    const py::gil_scoped_release release;
    (prefill ? table_.prefill_attend : table_.attend)(args, row_begin, row_end, kv_head);
  }
  ExactFloats span(int64_t row, int64_t kv_head, int64_t number) const {
    check(row, kv_head);
    ExactFloats partial(partial_size());
    table_.attend_span(args_, row, kv_head, number, partial.mutable_data());
    return partial;
  }
  void merge(ExactFloats& out, int64_t row, int64_t kv_head, const ExactFloats& partials) const {
    check(row, kv_head);
    require(partials.size() % partial_size() == 0, "partials of whole spans");
    table_.attend_merge(into(out), row, kv_head, partials.data(), partials.size() / partial_size());
  }

 private:
  int64_t stride_of(const ExactFloats& rows, int64_t dim) const {
    require(rows.ndim() == 2 && rows.shape(0) == static_cast<int64_t>(views_.size()) &&
                rows.shape(1) >= args_.n_heads * dim,
            "q and out have a row per view");
    return rows.shape(1);
  }
  AttendArgs into(ExactFloats& out) const {
    AttendArgs args = args_;
    args.out_stride = stride_of(out, args.kv.value_dim);
    args.out = out.mutable_data();
    return args;
  }
  void check(int64_t row, int64_t kv_head) const {
    require(row >= 0 && row < static_cast<int64_t>(views_.size()), "row out of range");
    require(kv_head >= 0 && kv_head < args_.kv.n_kv_heads, "kv_head out of range");
  }
  int64_t partial_size() const {
    return args_.n_heads / args_.kv.n_kv_heads * (args_.kv.value_dim + 2);
  }

  const KernelTable& table_;
  Cells cells_;
  ExactFloats q_;
  Rows rows_;
  std::optional<ExactFloats> slopes_, sinks_;
  std::vector<RowView> views_;
  AttendArgs args_{};
};

}  // namespace

void register_attention(py::module_& m) {
  py::class_<Cells>(m, "Cells")
      .def(py::init<ByteArray, ByteArray, const std::string&, int64_t, int64_t, int64_t>(),
           py::arg("k").noconvert(), py::arg("v").noconvert(), py::arg("type"),
           py::arg("n_kv_heads"), py::arg("key_dim"), py::arg("value_dim"))
      .def("store_kv", &Cells::store_kv, py::arg("isa"), py::arg("slot"), py::arg("k").noconvert(),
           py::arg("v").noconvert())
      .def("store_k", &Cells::store_k, py::arg("isa"), py::arg("slot"), py::arg("k").noconvert())
      .def("load_k", &Cells::load_k, py::arg("isa"), py::arg("slot"));
  py::class_<Attention>(m, "Attention")
      .def(py::init<const std::string&, Cells, ExactFloats, Rows, int64_t, float, float,
                    std::optional<ExactFloats>>(),
           py::arg("isa"), py::arg("cells"), py::arg("q").noconvert(), py::arg("rows"),
           py::arg("n_heads"), py::arg("scale"), py::arg("softcap"), py::arg("slopes") = py::none())
      .def("add_sinks", &Attention::add_sinks, py::arg("sinks").noconvert())
      .def("attend", &Attention::attend, py::arg("out").noconvert(), py::arg("row_begin"),
           py::arg("row_end"), py::arg("kv_head"), py::arg("prefill") = false)
      .def("span", &Attention::span, py::arg("row"), py::arg("kv_head"), py::arg("number"))
      .def("merge", &Attention::merge, py::arg("out").noconvert(), py::arg("row"),
           py::arg("kv_head"), py::arg("partials").noconvert());
}

}  // namespace pyflow
