// Speculators' heads, from the dict that a layout of pyflow/speculate/trained makes.
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "bindings/model/spec.h"
#include "model/heads/heads.h"

namespace pyflow {
namespace {

std::unique_ptr<Heads> make_heads(std::shared_ptr<Checkpoint> file, const py::dict& d,
                                  std::shared_ptr<Stage> base,
                                  const std::optional<std::string>& pack_as,
                                  std::shared_ptr<Stage> tables, bool tied) {
  HeadsSpec spec{.n_embd = d["n_embd"].cast<int64_t>(),
                 .n_inner = d["n_inner"].cast<int64_t>(),
                 .scale_input = d["scale_input"].cast<bool>(),
                 .tied = tied,
                 .vocabulary = d["vocabulary"].cast<std::vector<int32_t>>(),
                 .heads = {}};
  for (const auto& head : d["heads"].cast<py::list>())
    spec.heads.push_back(block_spec(head.cast<py::dict>()));
  std::optional<DType> dtype;
  if (pack_as) dtype = dtype_of(*pack_as);
  TensorSource source = tensor_source(std::move(file));
  py::gil_scoped_release release;
  return std::make_unique<Heads>(std::move(spec), std::move(source), std::move(base),
                                 std::move(tables), dtype, check_signals);
}

using Tree = std::tuple<std::vector<int32_t>, std::vector<int32_t>, std::vector<float>>;

std::vector<Tree> draft_all(Heads& heads, const FloatArray& hidden, const IntArray& roots,
                            int64_t n_nodes, int64_t depth, float least, float least_level,
                            int64_t width) {
  std::vector<GuessTree> grown;
  {
    const auto rows = floats(hidden);
    const auto tokens = ints(roots);
    py::gil_scoped_release release;
    grown = heads.draft(rows, tokens,
                        {.n_nodes = n_nodes,
                         .depth = depth,
                         .width = width,
                         .least = least,
                         .least_level = least_level});
  }
  std::vector<Tree> trees;
  for (GuessTree& tree : grown)
    trees.emplace_back(std::move(tree.tokens), std::move(tree.parents),
                       std::move(tree.probabilities));
  return trees;
}

Tree draft(Heads& heads, const FloatArray& hidden, int32_t root, int64_t n_nodes, int64_t depth,
           float least, float least_level, int64_t width) {
  IntArray roots(1);
  *roots.mutable_data() = root;
  return draft_all(heads, hidden, roots, n_nodes, depth, least, least_level, width)[0];
}

py::array_t<float> logits(Heads& heads, const FloatArray& hidden, const IntArray& tokens) {
  py::array_t<float> out({static_cast<int64_t>(tokens.size()), heads.n_guessed()});
  float* to = out.mutable_data();
  const auto row = floats(hidden);
  const auto text = ints(tokens);
  py::gil_scoped_release release;
  heads.logits(row, text, to);
  return out;
}

}  // namespace

void register_heads(py::module_& m) {
  py::class_<Heads>(m, "Heads")
      .def(py::init(&make_heads), py::arg("file"), py::arg("spec"), py::arg("base"),
           py::arg("pack_as") = py::none(), py::arg("tables") = py::none(), py::arg("tied") = false)
      .def_property_readonly("n_heads", &Heads::n_heads)
      .def_property_readonly("n_guessed", &Heads::n_guessed)
      .def_property_readonly("nbytes", &Heads::nbytes)
      .def("draft", &draft, py::arg("hidden"), py::arg("root"), py::arg("n_nodes"),
           py::arg("depth"), py::arg("least") = 0.0F, py::arg("least_level") = 0.0F,
           py::arg("width") = kMostGuesses)
      .def("draft_all", &draft_all, py::arg("hidden"), py::arg("roots"), py::arg("n_nodes"),
           py::arg("depth"), py::arg("least") = 0.0F, py::arg("least_level") = 0.0F,
           py::arg("width") = kMostGuesses)
      .def("logits", &logits, py::arg("hidden"), py::arg("tokens"));
}

}  // namespace pyflow
