// Drafts of a tree that has not ended, their verification, and the layers that both may share:
// conversion only.
#include <string>
#include <vector>

#include "bindings/convert.h"
#include "bindings/run.h"
#include "model/verification.h"

namespace pyflow {
namespace {

std::vector<Verified> verify_drafts(Context& c, const std::vector<Draft*>& given,
                                    const std::string& policy, const std::vector<int32_t>& stops,
                                    bool hidden, int64_t first_layer, const FloatArray& features) {
  std::vector<Draft> drafts;
  for (const Draft* d : given) drafts.push_back(*d);
  std::vector<Verified> out;
  run_released(c, [&](const std::function<bool()>& poll) {
    out = verify(c, drafts,
                 {.policy = policy,
                  .stops = stops,
                  .hidden = hidden,
                  .first_layer = first_layer,
                  .features = floats(features)},
                 poll);
  });
  return out;
}

// Adds rows to the pending tree of a sequence, or begins one with a root, and runs layers up to
// end_layer.
void grow(Context& c, const IntArray& tokens, const IntArray& parents, int seq,
          const IntArray& wanted, int64_t end_layer, const Context::Consume& consume,
          std::vector<KvRow>& rows) {
  if (tokens.size() != parents.size())
    throw ShapeError("parents: expected one per token, found " + std::to_string(parents.size()) +
                     " for " + std::to_string(tokens.size()) + " tokens");
  checked_sequence(seq);
  run_released(c, [&](const std::function<bool()>& poll) {
    const auto before = c.kv().pending();
    for (const int32_t parent : ints(parents)) {
      const auto at = static_cast<size_t>(parent);
      int32_t position = -1;  // refused by the cache: the parent is no row before this one
      if (parent == kv::kNoParent)
        position = c.kv().seq_pos_max(seq) + 1;
      else if (parent >= 0 && at < before.size())
        position = before[at].position + 1;
      else if (parent >= 0 && at - before.size() < rows.size())
        position = rows[at - before.size()].position + 1;
      rows.push_back({position, {seq}});
    }
    c.run({.tokens = ints(tokens),
           .hidden = {},
           .rows = rows,
           .parents = ints(parents),
           .wanted = ints(wanted),
           .regime = Regime::Decode,
           .end_layer = end_layer},
          consume, poll);
  });
}

// A row, and the tokens between what the sampler has accepted and it.
using Wanted = std::pair<int32_t, std::vector<int32_t>>;

// Per wanted row its guesses, and the distribution that they were drawn from: an empty one without
// `distribution`.
std::pair<std::vector<Pairs>, std::vector<Pairs>> guess(Context& c, const IntArray& tokens,
                                                        const IntArray& parents, int seq,
                                                        const std::vector<Wanted>& wanted,
                                                        const Sampler& sampler, int n,
                                                        bool distribution) {
  IntArray numbers(static_cast<py::ssize_t>(wanted.size()));
  for (size_t i = 0; i < wanted.size(); ++i) numbers.mutable_data()[i] = wanted[i].first;
  const Purpose purpose = distribution ? Purpose::Draft : Purpose::Sample;
  std::vector<Guesses> found(wanted.size());
  std::vector<KvRow> rows;
  grow(
      c, tokens, parents, seq, numbers, Context::kLastLayer,
      [&](int64_t i, std::span<const float> logits) {
        const auto& [row, path] = wanted[static_cast<size_t>(i)];
        const int64_t position = rows[static_cast<size_t>(row)].position;
        found[static_cast<size_t>(i)] = sampler.guess(logits, position + 1, path, n, purpose);
      },
      rows);
  std::vector<Pairs> guessed, distributions;
  for (const Guesses& g : found) {
    guessed.push_back(pairs_of(g.tokens, &Guess::probability));
    distributions.push_back(pairs_of(g.distribution, &Weighted::weight));
  }
  return {std::move(guessed), std::move(distributions)};
}

py::array_t<float> exit_layer(Context& c, const IntArray& tokens, const IntArray& parents, int seq,
                              int64_t layer) {
  std::vector<KvRow> rows;
  grow(c, tokens, parents, seq, IntArray(0), layer, {}, rows);
  py::array_t<float> out(
      {static_cast<py::ssize_t>(tokens.size()), static_cast<py::ssize_t>(c.stage().spec().n_embd)});
  c.copy_hidden(out.mutable_data());
  return out;
}

}  // namespace

void register_speculate(py::module_& m) {
  py::dict promises;
  for (const Policy& policy : policies()) promises[policy.name] = policy.promise;
  m.attr("POLICIES") = promises;
  py::class_<Draft>(m, "Draft")
      .def(py::init([](int seq, int32_t root, std::vector<int32_t> tokens,
                       std::vector<int32_t> parents, int64_t n_verified, std::vector<int32_t> asked,
                       Sampler& sampler, const std::vector<Pairs>& distributions) {
             return Draft{seq,
                          root,
                          {std::move(tokens), std::move(parents), distributions_of(distributions),
                           n_verified},
                          std::move(asked),
                          &sampler};
           }),
           py::arg("seq"), py::arg("root"), py::arg("tokens"), py::arg("parents"),
           py::arg("n_verified"), py::arg("asked"), py::arg("sampler"),
           py::arg("distributions") = std::vector<Pairs>(), py::keep_alive<1, 8>());
  py::class_<Verified>(m, "Verified")
      .def_property_readonly("nodes", [](const Verified& v) { return v.verdict.nodes; })
      .def_property_readonly("drawn", [](const Verified& v) { return v.verdict.drawn; })
      .def_readonly("answers", &Verified::answers)
      .def_property_readonly("hidden", [](const Verified& v) -> py::object {
        if (v.hidden.empty()) return py::none();
        return py::array_t<float>(static_cast<py::ssize_t>(v.hidden.size()), v.hidden.data());
      });
  m.def("verify", &verify_drafts, py::arg("context"), py::arg("drafts"), py::arg("policy"),
        py::arg("stops"), py::arg("hidden") = false, py::arg("first_layer") = 0,
        py::arg("features") = FloatArray(0));
  m.def("guess", &guess, py::arg("context"), py::arg("tokens"), py::arg("parents"), py::arg("seq"),
        py::arg("wanted"), py::arg("sampler"), py::arg("n"), py::arg("distribution") = false);
  m.def("exit_layer", &exit_layer, py::arg("context"), py::arg("tokens"), py::arg("parents"),
        py::arg("seq"), py::arg("layer"));
  m.def(
      "commit",
      [](Context& c, const AcceptedRows& accepted) { c.kv().commit(accepted_rows(accepted)); },
      py::arg("context"), py::arg("accepted"));
  m.def("abort", &Context::abort, py::arg("context"));
}

}  // namespace pyflow
