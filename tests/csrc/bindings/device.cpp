// The kernels of a device on arrays of a test's, uploaded, run and downloaded again.
#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/testing.h"
#include "device/cuda/api.h"
#include "device/device.h"
#include "device/ops.h"
#include "device/probe.h"
#include "device/selftest.h"
#include "model/blocks/activation.h"

namespace pyflow {
namespace {

using namespace device;

using Held = std::unique_ptr<DeviceBuffer>;
using Edits = std::vector<std::pair<std::string, std::string>>;
using Rows = std::vector<std::pair<ExactInts, ExactInts>>;  // slots and positions that a row sees

std::vector<DType> formats_of(const std::vector<std::string>& names) {
  std::vector<DType> formats;
  for (const std::string& name : names) formats.push_back(dtype_of(name));
  return formats;
}

// The source of a program with some of its text replaced; each edit must find something.
Source edited(Source source, const Edits& edits, const std::string& options) {
  for (const auto& [from, to] : edits) {
    size_t at = source.text.find(from);
    require(at != std::string::npos, "the text to edit is not in the source");
    for (; at != std::string::npos; at = source.text.find(from, at + to.size()))
      source.text.replace(at, from.size(), to);
  }
  if (!options.empty()) source.options = options;
  return source;
}

class DeviceOps {
 public:
  DeviceOps(size_t number, const std::vector<std::string>& formats, const Edits& edits,
            const std::string& options)
      : formats_(formats_of(formats)),
        device_(open_device(number)),
        source_(edited(program_source(device_->info(), formats_), edits, options)),
        compiled_(compile(device_, source_, "")),
        ops_(compiled_),
        queue_(device_->make_queue()) {}

  std::string first_fault() { return device::first_fault(ops_, formats_); }
  // After it, products do without matrix units that are at fault.
  std::string units_fault() {
    find_fault(compiled_, formats_, nullptr);
    ops_ = Ops(compiled_);
    return compiled_.units_fault;
  }
  const Source& source() const { return source_; }

  ExactFloats product(const PackedTensor& w, const ExactFloats& x) {
    require(x.ndim() == 2 && x.shape(1) == w.cols(), "x has rows of the weights' columns");
    const int64_t n = x.shape(0), width = w.tiles() * kTileRows;
    const bool pairs = fine_inputs(w.dtype());
    ExactFloats y({n, width});
    std::memset(y.mutable_data(), 0xff, static_cast<size_t>(y.nbytes()));
    const Held tiles = upload(w.data(), w.nbytes()), in = upload(x), out = upload(y);
    const DeviceMatrix matrix = {tiles.get(), w.dtype(), w.rows(), w.cols()};
    if (float_inputs(w.dtype())) {
      ops_.matmul(*queue_, matrix, rows_of(in, x), n, rows_of(out, y));
    } else {
      const Held acts = allocate(act_bytes(n, w.cols(), pairs));
      ops_.quantize(*queue_, rows_of(in, x), n, w.cols(), *acts, pairs);
      ops_.matmul(*queue_, matrix, *acts, n, rows_of(out, y));
      queue_->finish();
    }
    return download(*out, y);
  }

  ByteArray quantize(const ExactFloats& x, bool pairs) {
    const Held in = upload(x), acts = allocate(act_bytes(x.shape(0), x.shape(1), pairs));
    ops_.quantize(*queue_, rows_of(in, x), x.shape(0), x.shape(1), *acts, pairs);
    return download(*acts,
                    ByteArray({x.shape(0), static_cast<int64_t>(acts->nbytes()) / x.shape(0)}));
  }

  // An operation on rows x in place, with an operand y: a row for each, or one for all.
  ExactFloats rows(const std::string& name, const ExactFloats& x, const ExactFloats& y,
                   float number) {
    const int64_t n_rows = x.shape(0), n = x.shape(1);
    const Held held = upload(x), other = upload(y);
    const FloatRows a = rows_of(held, x);
    FloatRows b = rows_of(other, y);
    if (y.shape(0) == 1) b.stride = 0;
    if (name == "rms_norm")
      ops_.rms_norm(*queue_, a, *other, number, n_rows, n, a);
    else if (name == "layer_norm")
      ops_.layer_norm(*queue_, a, *other, number, n_rows, n, a);
    else if (name == "add")
      ops_.add(*queue_, a, b, n_rows, n);
    else if (name == "add_scaled")
      ops_.add_scaled(*queue_, a, b, number, n_rows, n);
    else if (name == "scale")
      ops_.scale(*queue_, a, number, n_rows, n);
    else if (name == "softcap")
      ops_.softcap(*queue_, a, number, n_rows, n);
    else if (name.starts_with("gate "))
      ops_.gate(*queue_, activation_named(name.substr(5)), a, b, n_rows, n);
    else
      ops_.activate(*queue_, activation_named(name), a, n_rows, n);
    return download(*held, ExactFloats({n_rows, n}));
  }

  ExactFloats rope(const ExactFloats& x, const ExactFloats& cos_sin, int64_t n_heads,
                   bool interleaved) {
    const Held held = upload(x), angles = upload(cos_sin);
    const Ops::Rope how = {n_heads, x.shape(1) / n_heads, cos_sin.shape(1) / 2, interleaved};
    ops_.rope(*queue_, rows_of(held, x), rows_of(angles, cos_sin), how, x.shape(0));
    return download(*held, ExactFloats({x.shape(0), x.shape(1)}));
  }

  // Cells in the test's arrays, which commands change in place.
  struct Cells {
    ByteArray k, v;
    std::string type;
    int64_t n_kv_heads, key_dim, value_dim;
  };
  void store(Cells& cells, const ExactInts& slots, const ExactFloats& k, const ExactFloats& v) {
    with(cells, [&](const DeviceCells& on_device) {
      const Held places = upload(slots), keys = upload(k), values = upload(v);
      ops_.store_cells(*queue_, on_device, *places, slots.size(), rows_of(keys, k),
                       rows_of(values, v));
      queue_->finish();
    });
  }
  // Loads the keys of slots and stores them in others.
  ExactFloats pass_keys(Cells& cells, const ExactInts& from, const ExactInts& to) {
    ExactFloats rows({from.size(), cells.n_kv_heads * cells.key_dim});
    with(cells, [&](const DeviceCells& on_device) {
      const Held a = upload(from), b = upload(to), keys = allocate(rows.nbytes());
      ops_.load_keys(*queue_, on_device, *a, from.size(), rows_of(keys, rows));
      ops_.store_keys(*queue_, on_device, *b, to.size(), rows_of(keys, rows));
      download(*keys, rows);
    });
    return rows;
  }
  void move(Cells& cells, const ExactInts& moves) {
    with(cells, [&](const DeviceCells& on_device) {
      const Held pairs = upload(moves);
      ops_.move_cells(*queue_, on_device, *pairs, moves.size() / 2);
      queue_->finish();
    });
  }

  // scratch_rows: so many rows at once.
  ExactFloats attend(Cells& cells, const ExactFloats& q, const Rows& seen, int64_t n_heads,
                     std::pair<float, float> scale_softcap,
                     const std::optional<ExactFloats>& slopes, int64_t scratch_rows,
                     const std::optional<ExactFloats>& sinks) {
    std::vector<RowView> views;
    for (const auto& [slots, positions] : seen)
      views.push_back({slots.data(), positions.data(), slots.size()});
    const ViewTable table = view_table(views);
    ExactFloats out({q.shape(0), n_heads * cells.value_dim});
    with(cells, [&](const DeviceCells& on_device) {
      const Held queries = upload(q), outputs = allocate(out.nbytes()),
                 rows = upload(table.views.data(), table.views.size() * sizeof(View)),
                 runs = upload(table.runs.data(), table.runs.size() * sizeof(ViewRun)),
                 factors = slopes ? upload(*slopes) : nullptr,
                 unseen = sinks ? upload(*sinks) : nullptr;
      DeviceAttention args = {on_device,
                              rows_of(queries, q),
                              rows_of(outputs, out),
                              rows.get(),
                              runs.get(),
                              table.most_blocks,
                              table.most_spans,
                              q.shape(0),
                              n_heads,
                              scale_softcap.first,
                              scale_softcap.second,
                              factors.get(),
                              unseen.get(),
                              nullptr};
      const Held scratch = allocate(scratch_rows * static_cast<int64_t>(Ops::scratch_nbytes(args)));
      args.scratch = scratch.get();
      ops_.attend(*queue_, args);
      download(*outputs, out);
    });
    return out;
  }

 private:
  static int64_t act_bytes(int64_t n, int64_t k, bool pairs) {
    return Ops::act_blocks(n, k, pairs) * static_cast<int64_t>(sizeof(ActBlock));
  }
  Held allocate(int64_t nbytes) {
    return device_->allocate(static_cast<size_t>(nbytes), "the test");
  }
  Held upload(const void* from, size_t nbytes) {
    Held held = device_->allocate(nbytes, "the test");
    queue_->upload(from, *held, 0, nbytes);
    queue_->finish();
    return held;
  }
  template <class Array>
  Held upload(const Array& from) {
    return upload(from.data(), static_cast<size_t>(from.nbytes()));
  }
  template <class Array>
  Array download(const DeviceBuffer& from, Array to) {
    queue_->download(from, 0, to.mutable_data(), static_cast<size_t>(to.nbytes()));
    queue_->mark()->wait([] {});
    return to;
  }
  static FloatRows rows_of(const Held& held, const ExactFloats& x) {
    return {held.get(), 0, x.shape(1)};
  }
  template <class Run>
  void with(Cells& cells, Run run) {
    const Held k = upload(cells.k), v = upload(cells.v);
    run(DeviceCells{k.get(), v.get(), cache_type(cells.type), cells.n_kv_heads, cells.key_dim,
                    cells.value_dim});
    download(*k, cells.k);
    download(*v, cells.v);
  }

  std::vector<DType> formats_;
  std::shared_ptr<Device> device_;
  Source source_;
  Compiled compiled_;
  Ops ops_;
  std::unique_ptr<Queue> queue_;
};

// Bytes through pinned memory, a slice, another queue and shared memory, and back.
py::bytes round_trip(size_t number, const std::string& bytes) {
  const auto device = open_device(number);
  const size_t n = bytes.size(), alignment = device->info().alignment;
  const auto first = device->make_queue(), second = device->make_queue();
  const Buffer memory(n, "the test"), source(n, "the test");
  const auto pinned = device->pin(source.data(), n);
  std::memcpy(source.data(), bytes.data(), n);
  const auto whole = device->allocate(alignment + n, "the test");
  const auto slice = whole->slice(alignment, n);
  first->fill(*whole, 0, alignment + n, 0);
  first->upload(source.data(), *slice, 0, n);
  const auto uploaded = first->mark();
  const auto shared = device->share(memory.data(), n);
  second->after(*uploaded);
  second->copy(*whole, alignment, *shared, 0, n);
  std::string back(n, '\0');
  second->download(*shared, 0, back.data(), n);
  second->mark()->wait([] {});
  return back;
}

// Whether a program came from the folder, and why the folder could not keep it. stopped: throws
// CancelledError while the driver compiles.
std::pair<bool, std::string> compile_text(size_t number, const std::string& text,
                                          const std::string& folder, bool stopped) {
  const Poll stop = [] { throw CancelledError("stopped"); };
  const Compiled compiled =
      compile(open_device(number), Source{text, ""}, folder, stopped ? stop : nullptr);
  compiled.program->kernel("answer");
  return {compiled.from_cache, compiled.refusal};
}

// The program for these formats on a GPU of NVIDIA: text and options.
std::pair<std::string, std::string> cuda_source(const std::vector<std::string>& formats) {
  DeviceInfo info;
  info.api = "CUDA";
  info.kind = Kind::Gpu;
  info.most_items = 1024;
  info.has_f64 = info.exact_division = info.matrix_units = true;
  const Source source = program_source(info, formats_of(formats));
  return {source.text, source.options};
}

// Its code for GPUs of a compute capability, by an NVRTC of version 12.
py::bytes cuda_code(const std::string& text, const std::string& options, int capability) {
  const cuda::Compiler* compiler = cuda::compiler_for(capability, 12'000);
  require(compiler != nullptr, "there is an NVRTC for this capability");
  const auto code = compiler->compile(text, options, capability);
  return {reinterpret_cast<const char*>(code.data()), code.size()};
}

}  // namespace

void register_device(py::module_& m) {
  py::class_<DeviceOps::Cells>(m, "DeviceCells")
      .def(py::init<ByteArray, ByteArray, std::string, int64_t, int64_t, int64_t>(), py::arg("k"),
           py::arg("v"), py::arg("type"), py::arg("n_kv_heads"), py::arg("key_dim"),
           py::arg("value_dim"));
  py::class_<DeviceOps>(m, "DeviceOps")
      .def(py::init<size_t, const std::vector<std::string>&, const Edits&, const std::string&>(),
           py::arg("number"), py::arg("formats"), py::arg("edits") = Edits{},
           py::arg("options") = "")
      .def_property_readonly("source", [](const DeviceOps& ops) { return ops.source().text; })
      .def_property_readonly("options", [](const DeviceOps& ops) { return ops.source().options; })
      .def("first_fault", &DeviceOps::first_fault)
      .def("units_fault", &DeviceOps::units_fault)
      .def("product", &DeviceOps::product, py::arg("weights"), py::arg("x").noconvert())
      .def("quantize", &DeviceOps::quantize, py::arg("x").noconvert(), py::arg("pairs"))
      .def("rows", &DeviceOps::rows, py::arg("name"), py::arg("x").noconvert(),
           py::arg("y").noconvert(), py::arg("number") = 0.0f)
      .def("rope", &DeviceOps::rope, py::arg("x").noconvert(), py::arg("cos_sin").noconvert(),
           py::arg("n_heads"), py::arg("interleaved"))
      .def("store", &DeviceOps::store, py::arg("cells"), py::arg("slots").noconvert(),
           py::arg("k").noconvert(), py::arg("v").noconvert())
      .def("pass_keys", &DeviceOps::pass_keys, py::arg("cells"), py::arg("from_slots").noconvert(),
           py::arg("to_slots").noconvert())
      .def("move", &DeviceOps::move, py::arg("cells"), py::arg("moves").noconvert())
      .def("attend", &DeviceOps::attend, py::arg("cells"), py::arg("q").noconvert(),
           py::arg("rows"), py::arg("n_heads"), py::arg("scale_softcap"),
           py::arg("slopes") = std::nullopt, py::arg("scratch_rows") = 4,
           py::arg("sinks") = std::nullopt);
  m.def("device_compile", &compile_text, py::arg("number"), py::arg("text"), py::arg("folder"),
        py::arg("stopped") = false);
  m.def("cuda_source", &cuda_source, py::arg("formats"));
  m.def("cuda_code", &cuda_code, py::arg("text"), py::arg("options"), py::arg("capability"));
  m.def("device_round_trip", &round_trip, py::arg("number"), py::arg("bytes"));
}

}  // namespace pyflow
