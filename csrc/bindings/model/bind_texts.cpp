// Encoders of texts, and layers of their own files.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/convert.h"
#include "bindings/model/spec.h"
#include "model/texts/text_encoder.h"

namespace pyflow {
namespace {

using Ends = py::array_t<int64_t, py::array::c_style | py::array::forcecast>;

std::span<const int64_t> longs(const Ends& a) { return {a.data(), static_cast<size_t>(a.size())}; }

std::shared_ptr<DenseFile> make_dense(std::shared_ptr<Checkpoint> file, const py::list& layers,
                                      std::shared_ptr<Stage> stage,
                                      const std::optional<std::string>& pack_as) {
  std::vector<BlockSpec> specs;
  for (const auto& layer : layers) specs.push_back(block_spec(layer.cast<py::dict>()));
  std::optional<DType> dtype;
  if (pack_as) dtype = dtype_of(*pack_as);
  TensorSource source = tensor_source(std::move(file));
  py::gil_scoped_release release;
  return std::make_shared<DenseFile>(specs, std::move(source), stage->pool(), stage->kernels(),
                                     dtype, check_signals);
}

// A dict with pools, and perhaps chain, the name of layers of the stage, files, whether those of the
// files follow, normalize, and first_pooled. rows outlive it.
Readout readout_of(const TextEncoder& encoder, const py::dict& d, const Ends& rows) {
  const auto value = [&d](const char* key, auto absent) {
    return d.contains(key) ? d[key].cast<decltype(absent)>() : absent;
  };
  Readout readout{.pools = {}, .layers = {}, .rows = {}};
  readout.normalize = value("normalize", false);
  readout.first_pooled = value("first_pooled", int64_t{0});
  readout.rows = longs(rows);
  for (const std::string& name : value("pools", std::vector<std::string>{}))
    readout.pools.push_back(pool_named(name));
  const auto add = [&](const std::vector<Dense>& layers) {
    for (const Dense& layer : layers) readout.layers.push_back(&layer);
  };
  if (const std::string chain = value("chain", std::string{}); !chain.empty()) {
    const auto found = encoder.stage().chains().find(chain);
    if (found == encoder.stage().chains().end())
      throw UnsupportedError("readout '" + chain + "': this model has no such layers");
    add(found->second);
  }
  if (value("files", false))
    for (const auto& file : encoder.files()) add(file->layers());
  return readout;
}

py::array_t<float> encode(TextEncoder& encoder, const IntArray& tokens, const IntArray& types,
                          const Ends& ends, const py::dict& readout_spec, const Ends& rows) {
  const Readout readout = readout_of(encoder, readout_spec, rows);
  const Texts texts = {ints(tokens), ints(types), longs(ends)};
  const std::unique_lock busy(encoder.busy(), std::try_to_lock);
  if (!busy)
    throw ResourceError("encoder: already running in another thread; use one for each thread");
  const int64_t n = readout.pools.empty() ? rows.size() : ends.size();
  py::array_t<float> out({n, encoder.n_out(readout)});
  float* to = out.mutable_data();
  py::gil_scoped_release release;
  encoder.run(texts, readout, to, check_signals);
  return out;
}

}  // namespace

void register_texts(py::module_& m) {
  py::class_<DenseFile, std::shared_ptr<DenseFile>>(m, "DenseFile")
      .def(py::init(&make_dense), py::arg("file"), py::arg("layers"), py::arg("stage"),
           py::arg("pack_as") = py::none())
      .def_property_readonly("nbytes", &DenseFile::nbytes);
  py::class_<TextEncoder>(m, "TextEncoder")
      .def(py::init([](std::shared_ptr<Stage> stage, int64_t n_batch,
                       const std::vector<std::shared_ptr<DenseFile>>& files,
                       std::shared_ptr<Stage> tables, std::shared_ptr<Link> link) {
             return std::make_unique<TextEncoder>(
                 std::move(stage), n_batch,
                 std::vector<std::shared_ptr<const DenseFile>>(files.begin(), files.end()),
                 std::move(tables), std::move(link));
           }),
           py::arg("stage"), py::arg("n_batch"), py::arg("files"), py::arg("tables") = py::none(),
           py::arg("link") = py::none())
      .def_static("nbytes", &TextEncoder::nbytes, py::arg("stage"), py::arg("n_batch"))
      .def("encode", &encode, py::arg("tokens"), py::arg("types"), py::arg("ends"),
           py::arg("readout"), py::arg("rows") = Ends(0));
}

}  // namespace pyflow
