// Contexts: steps of a stage over its KV cache. The GIL is released while a step runs.
#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "bindings/run.h"
#include "calibrate/input_moments.h"

namespace pyflow {
namespace {

ContextConfig context_config(int64_t n_ctx, int n_seq_max, int64_t n_batch, const std::string& type,
                             int64_t n_source) {
  return {n_ctx, n_seq_max, n_batch, cache_type(type), {}, n_source};
}

// The rows of an encoder, (n, n_embd), as the source of a sequence.
void read_source(Context& c, int seq, const FloatArray& states) {
  const auto given = floats(states);
  run_released(c, [&](const std::function<bool()>& poll) { c.read_source(seq, given, poll); });
}

// One sequence id for all rows, one per row, or a list of ids per row (branches of a tree).
std::vector<KvRow> rows(const IntArray& positions, const py::object& seqs) {
  std::vector<KvRow> out(static_cast<size_t>(positions.size()));
  const auto add = [](KvRow& row, const py::handle& given) {
    int id = 0;
    try {
      id = given.cast<int>();
    } catch (const py::cast_error&) {
      throw ShapeError("seqs: expected numbers of sequences, found " +
                       py::repr(given).cast<std::string>());
    }
    row.sequences.add(checked_sequence(id));
  };
  const bool one = py::isinstance<py::int_>(seqs);
  const auto list = one ? py::list() : py::list(seqs);
  if (!one && list.size() != out.size())
    throw ShapeError("seqs: expected one per row, found " + std::to_string(list.size()) + " for " +
                     std::to_string(out.size()) + " rows");
  for (size_t i = 0; i < out.size(); ++i) {
    out[i].position = positions.data()[i];
    if (one)
      add(out[i], seqs);
    else if (py::isinstance<py::sequence>(list[i]))
      for (const auto& id : list[i].cast<py::sequence>()) add(out[i], id);
    else
      add(out[i], list[i]);
  }
  return out;
}

// `input`: token ids on a first stage, rows of StageSpec::row_width() on a later one. With parents the
// rows are those of a tree, and stay pending.
void run(Context& c, const py::object& input, const IntArray& positions, const py::object& seqs,
         const IntArray& wanted, const std::string& regime, const Context::Consume& consume,
         const IntArray& parents = IntArray(0)) {
  const std::vector<KvRow> kv_rows = rows(positions, seqs);
  const IntArray tokens = c.stage().first() ? input.cast<IntArray>() : IntArray(0);
  const FloatArray hidden = c.stage().first() ? FloatArray(0) : input.cast<FloatArray>();
  const Context::Input in{
      .tokens = ints(tokens),
      .hidden = floats(hidden),
      .rows = kv_rows,
      .parents = ints(parents),
      .wanted = ints(wanted),
      .n_prefill = regime_of(regime) == Regime::Prefill ? std::ssize(kv_rows) : 0};
  run_released(c, [&](const std::function<bool()>& poll) { c.run(in, consume, poll); });
}

py::array_t<float> forward(Context& c, const py::object& input, const IntArray& positions,
                           const py::object& seqs, const IntArray& wanted,
                           const std::string& regime, const IntArray& parents) {
  const auto n_vocab = c.stage().spec().n_vocab;
  py::array_t<float> out(
      {static_cast<py::ssize_t>(wanted.size()), static_cast<py::ssize_t>(n_vocab)});
  float* data = out.mutable_data();
  const auto copy = [&](int64_t i, std::span<const float> logits) {
    std::copy(logits.begin(), logits.end(), data + i * n_vocab);
  };
  run(c, input, positions, seqs, wanted, regime, copy, parents);
  return out;
}

py::array_t<float> hidden(const Context& c) {
  py::array_t<float> out({static_cast<py::ssize_t>(c.n_hidden()),
                          static_cast<py::ssize_t>(c.stage().spec().row_width())});
  c.copy_hidden(out.mutable_data());
  return out;
}

py::array_t<double> score(Context& c, const py::object& input, const IntArray& positions,
                          const py::object& seqs, const IntArray& wanted, const IntArray& targets,
                          const std::string& regime) {
  const auto n_vocab = c.stage().spec().n_vocab;
  if (targets.size() != wanted.size())
    throw ShapeError("targets: expected one per wanted row, found " +
                     std::to_string(targets.size()) + " for " + std::to_string(wanted.size()) +
                     " rows");
  for (const int32_t t : ints(targets))
    if (t < 0 || t >= n_vocab)
      throw ShapeError("target " + std::to_string(t) + ": expected 0 to " +
                       std::to_string(n_vocab - 1));
  py::array_t<double> out(wanted.size());
  double* data = out.mutable_data();
  const int32_t* target = targets.data();
  const auto log_sum_exp = c.stage().kernels().log_sum_exp;
  run(c, input, positions, seqs, wanted, regime, [&](int64_t i, std::span<const float> logits) {
    data[i] = logits[static_cast<size_t>(target[i])] -
              log_sum_exp(logits.data(), static_cast<int64_t>(logits.size()));
  });
  return out;
}

// The keys and values of positions [p0, p1) of a sequence in a layer, a row for each cell.
py::array_t<uint8_t> read_cells(Context& c, int64_t layer, int seq, int32_t p0, int32_t p1) {
  const auto n_layers = static_cast<int64_t>(c.stage().kv_layers().size());
  if (layer < 0 || layer >= n_layers || p0 < 0 || p1 < p0)
    throw ShapeError("cells: expected a layer below " + std::to_string(n_layers) +
                     " and ascending positions, found layer " + std::to_string(layer) + ", " +
                     std::to_string(p0) + " to " + std::to_string(p1));
  const auto at = static_cast<size_t>(layer);
  py::array_t<uint8_t> out(
      {static_cast<py::ssize_t>(p1 - p0), static_cast<py::ssize_t>(c.kv().cell_nbytes(at))});
  c.kv().read_cells(at, seq, p0, p1, out.mutable_data());
  return out;
}

using ByteArray = py::array_t<uint8_t, py::array::c_style>;

// Appends n cells to a sequence, from a position on; cells[layer] are those of the last rows.
void restore_cells(Context& c, int seq, int32_t position, int64_t n,
                   const std::vector<ByteArray>& cells) {
  const std::unique_lock busy(c.busy(), std::try_to_lock);
  if (!busy)
    throw ResourceError("context: already running in another thread; use one context per thread");
  KvCache& kv = c.kv();
  const size_t n_layers = c.stage().kv_layers().size();
  if (cells.size() != n_layers || n < 1 || n > c.config().n_batch || position < 0 ||
      position > std::numeric_limits<int32_t>::max() - n)
    throw ShapeError("cells: expected those of " + std::to_string(n_layers) +
                     " layers and at most " + std::to_string(c.config().n_batch) + " rows, found " +
                     std::to_string(cells.size()) + " and " + std::to_string(n));
  for (size_t i = 0; i < n_layers; ++i)
    if (cells[i].ndim() != 2 || cells[i].shape(0) > n ||
        static_cast<size_t>(cells[i].shape(1)) != kv.cell_nbytes(i))
      throw ShapeError("cells: layer " + std::to_string(i) + ": expected at most " +
                       std::to_string(n) + " rows of " + std::to_string(kv.cell_nbytes(i)) +
                       " bytes");
  std::vector<KvRow> rows(static_cast<size_t>(n));
  for (KvRow& row : rows) {
    row.position = position++;
    row.sequences.add(checked_sequence(seq));
  }
  kv.begin(rows);
  for (size_t i = 0; i < n_layers; ++i) kv.write_cells(i, cells[i].shape(0), cells[i].data());
  kv.commit();
}

std::vector<std::pair<size_t, size_t>> cell_parts(Context& c) {
  std::vector<std::pair<size_t, size_t>> all;
  for (size_t i = 0; i < c.stage().kv_layers().size(); ++i)
    all.emplace_back(c.kv().key_nbytes(i), c.kv().cell_nbytes(i) - c.kv().key_nbytes(i));
  return all;
}

std::vector<int64_t> layer_windows(Context& c) {
  const std::vector<KvGroup> groups = c.kv().groups();
  std::vector<int64_t> windows;
  for (size_t i = 0; i < c.stage().kv_layers().size(); ++i)
    windows.push_back(groups[c.kv().group_of(i)].window);
  return windows;
}

// A method of the context's cache: one that changes it is called for all members.
template <class... Args>
auto on_cache(void (KvCache::*method)(Args...)) {
  return [method](Context& c, Args... args) {
    c.each([&](Context& member) { (member.kv().*method)(args...); });
  };
}
template <class R, class... Args>
auto on_cache(R (KvCache::*method)(Args...) const) {
  return [method](Context& c, Args... args) { return (c.kv().*method)(args...); };
}

void declare(Context& c, int seq, int64_t n_positions) {
  c.each([&](Context& member) { member.declare(seq, n_positions); });
}

void clear(Context& c) {
  c.each([](Context& member) { member.clear(); });
}

void adapt(Context& c, int seq, std::shared_ptr<AdapterSet> adapters) {
  const std::lock_guard guard(c.busy());
  c.adapt(checked_sequence(seq), std::move(adapters));
}

int64_t n_free(Context& c) {
  int64_t n = std::numeric_limits<int64_t>::max();
  for (const KvGroup& g : c.kv().groups()) n = std::min(n, g.capacity - g.used);
  return n;
}

}  // namespace

void register_context(py::module_& m) {
  m.attr("MAX_SEQUENCES") = kMaxSequences;
  m.attr("MAX_BATCH") = kMaxBatch;
  py::class_<Context, std::shared_ptr<Context>>(m, "Context")
      .def(py::init([](std::shared_ptr<Stage> stage, int64_t n_ctx, int n_seq_max, int64_t n_batch,
                       const std::string& type, std::vector<int64_t> layers, int64_t n_source,
                       std::shared_ptr<Link> link) {
             ContextConfig config = context_config(n_ctx, n_seq_max, n_batch, type, n_source);
             config.layers = std::move(layers);
             config.link = std::move(link);
             return std::make_shared<Context>(std::move(stage), config);
           }),
           py::arg("stage"), py::kw_only(), py::arg("n_ctx"), py::arg("n_seq_max"),
           py::arg("n_batch"), py::arg("cache_type"), py::arg("layers") = std::vector<int64_t>(),
           py::arg("n_source") = 0, py::arg("link") = std::shared_ptr<Link>())
      .def_static(
          "memory",
          [](const Stage& stage, int64_t n_ctx, int n_seq_max, int64_t n_batch,
             const std::string& type, int64_t n_source) {
            const auto memory =
                Context::memory(stage, context_config(n_ctx, n_seq_max, n_batch, type, n_source));
            return py::make_tuple(memory.kv, memory.scratch);
          },
          py::arg("stage"), py::kw_only(), py::arg("n_ctx"), py::arg("n_seq_max"),
          py::arg("n_batch"), py::arg("cache_type"), py::arg("n_source") = 0)
      .def_static(
          "device_memory",
          [](const Stage& stage, int64_t n_ctx, int n_seq_max, int64_t n_batch,
             const std::string& type, int64_t n_source) {
            const auto config = context_config(n_ctx, n_seq_max, n_batch, type, n_source);
            return Context::memory(stage, config).devices;
          },
          py::arg("stage"), py::kw_only(), py::arg("n_ctx"), py::arg("n_seq_max"),
          py::arg("n_batch"), py::arg("cache_type"), py::arg("n_source") = 0)
      .def("forward", &forward, py::arg("input"), py::arg("positions"), py::arg("seqs"),
           py::arg("wanted"), py::arg("regime") = "decode", py::arg("parents") = IntArray(0))
      .def("hidden", &hidden)
      .def("score", &score, py::arg("input"), py::arg("positions"), py::arg("seqs"),
           py::arg("wanted"), py::arg("targets"), py::arg("regime") = "decode")
      .def(
          "observe",
          [](Context& c, std::shared_ptr<InputMoments> moments) { c.observe(std::move(moments)); },
          py::arg("moments"))
      .def("lead", &Context::lead, py::arg("others"))
      .def_property_readonly("others", &Context::others)
      .def_property_readonly("cell_parts", &cell_parts)
      .def("declare", &declare, py::arg("seq"), py::arg("n_positions"))
      .def("adapt", &adapt, py::arg("seq"), py::arg("adapters"))
      .def("interrupt", &Context::interrupt)
      .def("seq_cp", on_cache(&KvCache::seq_cp))
      .def("seq_rm", on_cache(&KvCache::seq_rm))
      .def("seq_keep", on_cache(&KvCache::seq_keep))
      .def("seq_add", on_cache(&KvCache::seq_add))
      .def("seq_pos_min", on_cache(&KvCache::seq_pos_min))
      .def("seq_pos_max", on_cache(&KvCache::seq_pos_max))
      .def("seq_reusable", on_cache(&KvCache::seq_reusable))
      .def("clear", &clear)
      .def("read_source", &read_source, py::arg("seq"), py::arg("states"))
      .def("share_source", &Context::share_source, py::arg("src"), py::arg("dst"))
      .def("drop_source", &Context::drop_source, py::arg("seq"))
      .def_property_readonly("n_free_source", &Context::n_free_source)
      .def("read_cells", &read_cells, py::arg("layer"), py::arg("seq"), py::arg("p0"),
           py::arg("p1"))
      .def("restore_cells", &restore_cells, py::arg("seq"), py::arg("position"), py::arg("n"),
           py::arg("cells"))
      .def_property_readonly("layer_windows", &layer_windows)
      .def_property_readonly("n_free", &n_free);
}

}  // namespace pyflow
