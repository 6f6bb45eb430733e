// Threads, stages and contexts: conversion only. The GIL is released while a step runs.
#include <algorithm>
#include <array>
#include <limits>
#include <memory>
#include <optional>
#include <string_view>
#include <tuple>

#include "bench/probe.h"
#include "bindings/convert.h"
#include "bindings/run.h"
#include "calibrate/input_moments.h"
#include "files/checkpoint.h"
#include "kernels/dispatch.h"
#include "sample/sampler.h"

namespace pyflow {
namespace {

TensorRef tensor_ref(const py::handle& given) {
  if (!py::isinstance<py::dict>(given)) return {.name = given.cast<std::string>()};
  const auto d = given.cast<py::dict>();
  TensorRef ref{.name = d["name"].cast<std::string>()};
  if (d.contains("rows")) ref.rows = d["rows"].cast<decltype(ref.rows)>();
  if (d.contains("transposed")) ref.transposed = d["transposed"].cast<bool>();
  if (d.contains("add")) ref.add = d["add"].cast<double>();
  constexpr int64_t kMost = int64_t{1} << 48;  // so that sums of them stay in range
  for (const auto& [start, count] : ref.rows)
    if (start < 0 || start > kMost || count < 1 || count > kMost)
      throw ShapeError("tensor " + ref.name + ": rows: expected segments (start, count), found (" +
                       std::to_string(start) + ", " + std::to_string(count) + ")");
  return ref;
}

BlockSpec::Value list_value(const py::list& list) {
  if (list.empty() || py::isinstance<py::float_>(list[0]) || py::isinstance<py::int_>(list[0]))
    return list.cast<std::vector<double>>();
  std::vector<TensorRef> refs;
  for (const auto& item : list) refs.push_back(tensor_ref(item));
  return refs;
}

BlockSpec block_spec(const py::dict& d) {
  BlockSpec spec;
  for (const auto& [key, value] : d) {
    const auto name = key.cast<std::string>();
    if (name == "kind")
      spec.kind = value.cast<std::string>();
    else if (py::isinstance<py::bool_>(value))
      spec.params[name] = value.cast<bool>();
    else if (py::isinstance<py::int_>(value))
      spec.params[name] = value.cast<int64_t>();
    else if (py::isinstance<py::float_>(value))
      spec.params[name] = value.cast<double>();
    else if (py::isinstance<py::dict>(value))
      spec.params[name] = tensor_ref(value);
    else if (py::isinstance<py::list>(value))
      spec.params[name] = list_value(value.cast<py::list>());
    else if (!value.is_none())
      spec.params[name] = value.cast<std::string>();
  }
  return spec;
}

StageSpec stage_spec(const py::dict& d) {
  StageSpec spec;
  spec.n_embd = d["n_embd"].cast<int64_t>();
  spec.n_vocab = d["n_vocab"].cast<int64_t>();
  for (const auto& item : d["ropes"].cast<py::list>()) {
    const auto r = item.cast<py::dict>();
    RopeSpec& rope = spec.ropes.emplace_back();
    rope.inv_freq = r["inv_freq"].cast<std::vector<double>>();
    rope.magnitude = r["magnitude"].cast<double>();
    rope.interleaved = r["interleaved"].cast<bool>();
    if (!r.contains("long_inv_freq")) continue;
    rope.long_inv_freq = r["long_inv_freq"].cast<std::vector<double>>();
    rope.long_magnitude = r["long_magnitude"].cast<double>();
    rope.n_ctx_original = r["n_ctx_original"].cast<int64_t>();
  }
  const auto optional = [&](const char* key) -> std::optional<BlockSpec> {
    if (d[key].is_none()) return std::nullopt;
    return block_spec(d[key].cast<py::dict>());
  };
  spec.embedding = optional("embedding");
  spec.head = optional("head");
  for (const auto& layer : d["layers"].cast<py::list>()) {
    spec.layers.emplace_back();
    for (const auto& block : layer.cast<py::list>())
      spec.layers.back().push_back(block_spec(block.cast<py::dict>()));
  }
  return spec;
}

std::shared_ptr<Stage> make_stage(std::shared_ptr<Checkpoint> file, const py::dict& spec,
                                  std::shared_ptr<ThreadPool> pool, bool load,
                                  const std::optional<std::string>& pack_as) {
  StageSpec parsed = stage_spec(spec);
  std::optional<DType> dtype;
  if (pack_as) dtype = dtype_of(*pack_as);
  const KernelTable& kernels = kernel_table();
  TensorSource source{file->label(), [file](const std::string& name) { return file->find(name); },
                      [file](const TensorRecord& r) { file->release(r); },
                      [file] { file->release_all(); }};
  py::gil_scoped_release release;
  return std::make_shared<Stage>(std::move(parsed), std::move(source), std::move(pool), kernels,
                                 dtype, load, check_signals);
}

using Node = std::tuple<int, std::vector<int>, int>;

std::shared_ptr<Placement> make_placement(const std::string& mode, const std::vector<Node>& nodes) {
  static constexpr std::array<std::string_view, 4> kModes = {"off", "interleave", "local",
                                                             "mirror"};  // as in Numa
  const auto found = std::find(kModes.begin(), kModes.end(), mode);
  if (found == kModes.end())
    throw UnsupportedError("numa '" + mode + "': expected off, interleave, local or mirror");
  std::vector<NumaNode> parsed;
  for (const auto& [number, cpus, n_threads] : nodes) parsed.push_back({number, cpus, n_threads});
  return std::make_shared<Placement>(static_cast<Numa>(found - kModes.begin()), std::move(parsed));
}

Regime regime_of(const std::string& name) {
  if (name == "prefill") return Regime::Prefill;
  if (name == "decode") return Regime::Decode;
  throw UnsupportedError("regime '" + name + "': expected prefill or decode");
}

ContextConfig context_config(int64_t n_ctx, int n_seq_max, int64_t n_batch,
                             const std::string& type) {
  return {n_ctx, n_seq_max, n_batch, cache_type(type), {}};
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

// `input`: token ids on a first stage, hidden states (n, n_embd) on a later one. With parents the
// rows are those of a tree, and stay pending.
void run(Context& c, const py::object& input, const IntArray& positions, const py::object& seqs,
         const IntArray& wanted, const std::string& regime, const Context::Consume& consume,
         const IntArray& parents = IntArray(0)) {
  const std::vector<KvRow> kv_rows = rows(positions, seqs);
  const IntArray tokens = c.stage().first() ? input.cast<IntArray>() : IntArray(0);
  const FloatArray hidden = c.stage().first() ? FloatArray(0) : input.cast<FloatArray>();
  const Context::Input in{.tokens = ints(tokens),
                          .hidden = floats(hidden),
                          .rows = kv_rows,
                          .parents = ints(parents),
                          .wanted = ints(wanted),
                          .regime = regime_of(regime)};
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

py::array_t<float> forward_hidden(Context& c, const py::object& input, const IntArray& positions,
                                  const py::object& seqs, const std::string& regime,
                                  const IntArray& parents) {
  run(c, input, positions, seqs, IntArray(0), regime, {}, parents);
  py::array_t<float> out({static_cast<py::ssize_t>(positions.size()),
                          static_cast<py::ssize_t>(c.stage().spec().n_embd)});
  c.copy_hidden(out.mutable_data());
  return out;
}

std::vector<Sampled> sample(Context& c, const py::object& input, const IntArray& positions,
                            const py::object& seqs, const IntArray& wanted,
                            const std::vector<Sampler*>& samplers, const std::string& regime) {
  if (samplers.size() != static_cast<size_t>(wanted.size()))
    throw ShapeError("samplers: expected one per wanted row, found " +
                     std::to_string(samplers.size()) + " for " + std::to_string(wanted.size()) +
                     " rows");
  std::vector<Sampled> out(samplers.size());
  const int32_t *row = wanted.data(), *position = positions.data();
  run(c, input, positions, seqs, wanted, regime, [&](int64_t i, std::span<const float> logits) {
    // The draw belongs to the position that the new token will take.
    const auto at = static_cast<size_t>(i);
    out[at] = samplers[at]->sample(logits, position[row[i]] + 1);
  });
  for (size_t i = 0; i < out.size(); ++i) samplers[i]->accept(out[i].token);
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

// For each input the tensors multiplied by it, their first rows, its columns, and the sums, which
// are those of `self`.
py::list moments(const py::object& self) {
  auto& observer = self.cast<InputMoments&>();
  std::unordered_map<const PackedTensor*, py::tuple> names;
  observer.stage().for_matrices([&](const TensorRef& ref, const PackedTensor& w) {
    names[&w] = py::make_tuple(ref.name, ref.rows.empty() ? 0 : ref.rows[0].first);
  });
  py::list out;
  for (const InputMoments::Moments& m : observer.moments()) {
    if (!m.sums.data())
      throw ResourceError("second moments of inputs: expected " +
                          std::to_string(m.shape.size() * int64_t{sizeof(float)}) +
                          " bytes of memory for the next matrix, found less; measure without them");
    py::list matrices;
    for (const PackedTensor* w : m.matrices) matrices.append(names.at(w));
    out.append(py::make_tuple(std::move(matrices), m.shape.n_cols(),
                              py::array_t<float>(m.shape.size(), m.sums.as<float>(), self)));
  }
  return out;
}

// Name of the tensor, its first row that the matrix has, rows added, and the sums.
py::list sums(const InputMoments& observer) {
  py::list out;
  observer.stage().for_matrices([&](const TensorRef& ref, const PackedTensor& w) {
    const InputMoments::Sums& s = observer.of(w);
    py::array_t<double> columns(static_cast<py::ssize_t>(s.columns.size()), s.columns.data());
    out.append(py::make_tuple(ref.name, ref.rows.empty() ? 0 : ref.rows[0].first, s.n_rows,
                              std::move(columns)));
  });
  return out;
}

}  // namespace

void register_model(py::module_& m) {
  m.attr("MAX_SEQUENCES") = kMaxSequences;
  m.attr("MAX_BATCH") = kMaxBatch;

  py::class_<Placement, std::shared_ptr<Placement>>(m, "Placement")
      .def(py::init(&make_placement), py::arg("mode"), py::arg("nodes"))
      .def_property_readonly("n_copies", &Placement::n_copies)
      .def_property_readonly("refusals", &Placement::refusals);

  py::class_<ThreadPool, std::shared_ptr<ThreadPool>>(m, "ThreadPool")
      .def(py::init<int, bool>(), py::arg("n_threads"), py::arg("adapts") = true)
      .def(py::init<int, bool, std::shared_ptr<Placement>>(), py::arg("n_threads"),
           py::arg("adapts") = true, py::kw_only(), py::arg("placement").none(false))
      .def_property_readonly("n_threads", &ThreadPool::size)
      .def_property_readonly("placement", &ThreadPool::placement);

  py::class_<Stage, std::shared_ptr<Stage>>(m, "Stage")
      .def(py::init(&make_stage), py::arg("file"), py::arg("spec"), py::arg("pool"),
           py::arg("load") = true, py::arg("pack_as") = py::none())
      .def_property_readonly("weight_bytes", &Stage::weight_bytes)
      .def_property_readonly("token_bytes",
                             [](const Stage& s) {
                               size_t n = 0;
                               for (const Bytes part : s.token_weights()) n += part.size();
                               return n;
                             })
      .def(
          "read_rate",
          [](const Stage& s, int repeats) {
            std::vector<std::vector<Bytes>> copies;
            for (size_t i = 0; i < s.pool().placement().n_copies(); ++i)
              copies.push_back(s.token_weights(i));
            return read_rate(s.pool(), s.kernels(), copies, repeats, check_signals);
          },
          py::arg("repeats"), py::call_guard<py::gil_scoped_release>())
      .def(
          "dot_rate",
          [](const Stage& s, int repeats) {
            return dot_rate(s.pool(), s.kernels(), repeats, check_signals);
          },
          py::arg("repeats"), py::call_guard<py::gil_scoped_release>())
      .def_property_readonly("isa", [](const Stage& s) { return s.kernels().name; })
      .def_property_readonly("shifts", &Stage::shifts)
      .def_property_readonly("used_tensors", &Stage::used_tensors);

  py::class_<InputMoments, std::shared_ptr<InputMoments>>(m, "InputMoments")
      .def(py::init([](std::shared_ptr<Stage> stage, bool moments) {
             return std::make_shared<InputMoments>(std::move(stage), moments);
           }),
           py::arg("stage"), py::arg("moments") = false)
      .def("sums", &sums)
      .def("moments", &moments);

  py::class_<Context>(m, "Context")
      .def(py::init([](std::shared_ptr<Stage> stage, int64_t n_ctx, int n_seq_max, int64_t n_batch,
                       const std::string& type, std::vector<int64_t> layers) {
             ContextConfig config = context_config(n_ctx, n_seq_max, n_batch, type);
             config.layers = std::move(layers);
             return std::make_unique<Context>(std::move(stage), config);
           }),
           py::arg("stage"), py::kw_only(), py::arg("n_ctx"), py::arg("n_seq_max"),
           py::arg("n_batch"), py::arg("cache_type"), py::arg("layers") = std::vector<int64_t>())
      .def_static(
          "memory",
          [](const Stage& stage, int64_t n_ctx, int n_seq_max, int64_t n_batch,
             const std::string& type) {
            const auto memory =
                Context::memory(stage, context_config(n_ctx, n_seq_max, n_batch, type));
            return py::make_tuple(memory.kv, memory.scratch);
          },
          py::arg("stage"), py::kw_only(), py::arg("n_ctx"), py::arg("n_seq_max"),
          py::arg("n_batch"), py::arg("cache_type"))
      .def("forward", &forward, py::arg("input"), py::arg("positions"), py::arg("seqs"),
           py::arg("wanted"), py::arg("regime") = "decode", py::arg("parents") = IntArray(0))
      .def("forward_hidden", &forward_hidden, py::arg("input"), py::arg("positions"),
           py::arg("seqs"), py::arg("regime") = "decode", py::arg("parents") = IntArray(0))
      .def("sample", &sample, py::arg("input"), py::arg("positions"), py::arg("seqs"),
           py::arg("wanted"), py::arg("samplers"), py::arg("regime") = "decode")
      .def("score", &score, py::arg("input"), py::arg("positions"), py::arg("seqs"),
           py::arg("wanted"), py::arg("targets"), py::arg("regime") = "decode")
      .def(
          "observe",
          [](Context& c, std::shared_ptr<InputMoments> moments) { c.observe(std::move(moments)); },
          py::arg("moments"))
      .def("interrupt", &Context::interrupt)
      .def("seq_cp", [](Context& c, int src, int dst, int32_t p0,
                        int32_t p1) { c.kv().seq_cp(src, dst, p0, p1); })
      .def("seq_rm",
           [](Context& c, int seq, int32_t p0, int32_t p1) { c.kv().seq_rm(seq, p0, p1); })
      .def("seq_keep", [](Context& c, int seq) { c.kv().seq_keep(seq); })
      .def("seq_add", [](Context& c, int seq, int32_t p0, int32_t p1,
                         int32_t delta) { c.kv().seq_add(seq, p0, p1, delta); })
      .def("seq_pos_min", [](Context& c, int seq) { return c.kv().seq_pos_min(seq); })
      .def("seq_pos_max", [](Context& c, int seq) { return c.kv().seq_pos_max(seq); })
      .def("seq_reusable",
           [](Context& c, int seq, int32_t n) { return c.kv().seq_reusable(seq, n); })
      .def_property_readonly("n_free",
                             [](Context& c) {
                               int64_t n = std::numeric_limits<int64_t>::max();
                               for (const KvGroup& g : c.kv().groups())
                                 n = std::min(n, g.capacity - g.used);
                               return n;
                             })
      .def("clear", [](Context& c) { c.kv().clear(); });
}

}  // namespace pyflow
