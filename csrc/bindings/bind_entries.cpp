// Entries of a step: conversion only.
#include <string>
#include <vector>

#include "bindings/convert.h"
#include "bindings/run.h"
#include "model/entries.h"

namespace pyflow {
namespace {

using Tokens = std::vector<int32_t>;
using ReportOf = std::tuple<int32_t, int32_t, int>;  // row, target, likeliest to name

Entry make_entry(int seq, Tokens tokens, Sampler* sampler, const std::string& policy, Tokens stops,
                 Tokens nodes, Tokens parents, int64_t n_verified,
                 const std::vector<Pairs>& distributions, Tokens asked, const py::object& masks,
                 const std::vector<ReportOf>& reports, Tokens hidden, const std::string& regime) {
  Entry entry{.seq = checked_sequence(seq),
              .tokens = std::move(tokens),
              .tree = {std::move(nodes), std::move(parents), distributions_of(distributions),
                       n_verified},
              .sampler = sampler,
              .policy = policy,
              .stops = std::move(stops),
              .asked = std::move(asked),
              .masks = {},
              .reports = {},
              .hidden = std::move(hidden),
              .regime = regime_of(regime)};
  if (!masks.is_none()) {
    const auto words = masks.cast<py::array_t<uint32_t, py::array::c_style>>();
    entry.masks.assign(words.data(), words.data() + words.size());
  }
  for (const auto& [row, target, n_top] : reports) entry.reports.push_back({row, target, n_top});
  return entry;
}

std::vector<EntryResult> run_step(Context& c, const std::vector<Entry*>& given, int64_t first_layer,
                                  const FloatArray& features) {
  std::vector<Entry> entries;
  for (const Entry* entry : given) entries.push_back(*entry);
  std::vector<EntryResult> out;
  run_released(c, [&](const std::function<bool()>& poll) {
    out = step(c, entries, {first_layer, floats(features)}, poll);
  });
  return out;
}

}  // namespace

void register_entries(py::module_& m) {
  py::dict promises;
  for (const Policy& policy : policies()) promises[policy.name] = policy.promise;
  m.attr("POLICIES") = promises;
  py::class_<Entry>(m, "Entry")
      .def(py::init(&make_entry), py::arg("seq"), py::arg("tokens"), py::arg("sampler") = nullptr,
           py::kw_only(), py::arg("policy") = "exact", py::arg("stops") = Tokens(),
           py::arg("nodes") = Tokens(), py::arg("parents") = Tokens(), py::arg("n_verified") = 0,
           py::arg("distributions") = std::vector<Pairs>(), py::arg("asked") = Tokens(),
           py::arg("masks") = py::none(), py::arg("reports") = std::vector<ReportOf>(),
           py::arg("hidden") = Tokens(), py::arg("regime") = "decode", py::keep_alive<1, 4>())
      .def_readonly("seq", &Entry::seq)
      .def_readwrite("tokens", &Entry::tokens);
  py::class_<EntryResult>(m, "EntryResult")
      .def_property_readonly("drawn", [](const EntryResult& r) { return r.verdict.drawn; })
      .def_property_readonly("nodes", [](const EntryResult& r) { return r.verdict.nodes; })
      .def_readonly("answers", &EntryResult::answers)
      .def_readonly("reports", &EntryResult::reports)
      .def_property_readonly("hidden",
                             [](const EntryResult& r) {
                               return py::array_t<float>(static_cast<py::ssize_t>(r.hidden.size()),
                                                         r.hidden.data());
                             })
      .def_property_readonly("failed", [](const EntryResult& r) { return r.error != nullptr; })
      .def("check", [](const EntryResult& r) {
        if (r.error) std::rethrow_exception(r.error);
      });
  m.def("step", &run_step, py::arg("context"), py::arg("entries"), py::arg("first_layer") = 0,
        py::arg("features") = FloatArray(0));
}

}  // namespace pyflow
