// The KV cache by itself, and the one of a context.
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/testing.h"
#include "kernels/dispatch.h"
#include "kv/kv_cache.h"
#include "model/context.h"

namespace pyflow {
namespace {

using Row = std::pair<int32_t, std::vector<int>>;              // position, sequences
using Layer = std::tuple<int64_t, int64_t, int64_t, int64_t>;  // n_kv_heads, key, value dim, window
using Seen = std::pair<std::vector<int32_t>, std::vector<int32_t>>;  // positions, slots

KvConfig config_from(const std::vector<Layer>& layers, const std::string& type, int64_t n_ctx,
                     int n_seq_max, int64_t n_batch, const py::object& rotate) {
  KvConfig config;
  for (const auto& [n_kv_heads, key_dim, value_dim, window] : layers)
    config.layers.push_back({n_kv_heads, key_dim, value_dim, window});
  config.type = cache_type(type);
  config.n_ctx = n_ctx;
  config.n_seq_max = n_seq_max;
  config.n_batch = n_batch;
  if (!rotate.is_none())
    config.rotate = [rotate, layers](size_t layer, int, float* k, int64_t stride, int32_t delta) {
      constexpr int64_t kFloat = sizeof(float);
      const auto& [n_kv_heads, key_dim, value_dim, window] = layers[layer];
      const std::vector<int64_t> strides = {stride * kFloat, kFloat};
      rotate(layer, py::array_t<float>({n_kv_heads, key_dim}, strides, k, py::none()), delta);
    };
  return config;
}

std::vector<KvRow> rows_from(const std::vector<Row>& rows) {
  std::vector<KvRow> result;
  for (const auto& [position, sequences] : rows) {
    KvRow row{position, {}};
    for (const int s : sequences) row.sequences.add(checked_sequence(s));
    result.push_back(row);
  }
  return result;
}

// A layer's keys or values as bytes, to be written and read by the test.
py::array_t<uint8_t> bytes(KvCache& cache, size_t layer, bool keys, const py::object& owner) {
  const KvView& kv = cache.view(layer);
  const int64_t slots = (cache.groups()[cache.group_of(layer)].capacity + 15) / 16 * 16;
  const int64_t n = kv.n_kv_heads * (keys ? kv.key_dim : kv.value_dim);
  const int64_t size = slots * (kv.type == CacheType::F16 ? n * 2 : n / 32 * 34);
  return py::array_t<uint8_t>(size, keys ? kv.k : kv.v, owner);
}

}  // namespace

void register_kv(py::module_& m) {
  m.def(
      "kv_nbytes",
      [](const std::vector<Layer>& layers, const std::string& type, int64_t n_ctx, int n_seq_max,
         int64_t n_batch) {
        return KvCache::nbytes(config_from(layers, type, n_ctx, n_seq_max, n_batch, py::none()));
      },
      py::arg("layers"), py::arg("type"), py::arg("n_ctx"), py::arg("n_seq_max"),
      py::arg("n_batch"));
  py::class_<KvCache>(m, "KvCache")
      .def(py::init([](const std::vector<Layer>& layers, const std::string& type, int64_t n_ctx,
                       int n_seq_max, int64_t n_batch, const py::object& rotate) {
             return std::make_unique<KvCache>(
                 config_from(layers, type, n_ctx, n_seq_max, n_batch, rotate), kernel_table());
           }),
           py::arg("layers"), py::arg("type"), py::arg("n_ctx"), py::arg("n_seq_max"),
           py::arg("n_batch"), py::arg("rotate") = py::none())
      .def("begin", [](KvCache& c, const std::vector<Row>& rows) { c.begin(rows_from(rows)); })
      .def("grow", [](KvCache& c, const std::vector<Row>& rows,
                      const std::vector<int32_t>& parents) { c.grow(rows_from(rows), parents); })
      .def("slots",
           [](const KvCache& c, size_t layer) {
             const auto slots = c.slots(layer);
             return std::vector<int32_t>(slots.begin(), slots.end());
           })
      .def("views",
           [](const KvCache& c, size_t layer) {
             std::vector<Seen> all;
             for (const RowView& v : c.views(layer))
               all.push_back({{v.positions, v.positions + v.n}, {v.slots, v.slots + v.n}});
             return all;
           })
      .def("commit", [](KvCache& c) { c.commit(); })
      .def("commit",
           [](KvCache& c, const AcceptedRows& accepted) { c.commit(accepted_rows(accepted)); })
      .def("abort", &KvCache::abort)
      .def("seq_cp", &KvCache::seq_cp)
      .def("seq_rm", &KvCache::seq_rm)
      .def("seq_keep", &KvCache::seq_keep)
      .def("seq_add", &KvCache::seq_add)
      .def("clear", &KvCache::clear)
      .def("seq_pos_min", &KvCache::seq_pos_min)
      .def("seq_pos_max", &KvCache::seq_pos_max)
      .def("seq_reusable", &KvCache::seq_reusable, py::arg("seq"),
           py::arg("n") = std::numeric_limits<int32_t>::max())
      .def("groups",
           [](const KvCache& c) {
             std::vector<std::tuple<int64_t, int64_t, int64_t>> all;
             for (const KvGroup& g : c.groups()) all.emplace_back(g.window, g.capacity, g.used);
             return all;
           })
      .def("group_of", &KvCache::group_of)
      .def("cells", &KvCache::cells)
      .def("check", &KvCache::check)
      .def("keys",
           [](py::object c, size_t layer) { return bytes(c.cast<KvCache&>(), layer, true, c); })
      .def("values",
           [](py::object c, size_t layer) { return bytes(c.cast<KvCache&>(), layer, false, c); });
  m.def(
      "context_kv", [](Context& c) -> KvCache& { return c.kv(); },
      py::return_value_policy::reference_internal, py::arg("context"));
}

}  // namespace pyflow
