// Trees that grow until a step or `commit` ends them: conversion only.
#include <string>
#include <vector>

#include "bindings/convert.h"
#include "bindings/run.h"
#include "sample/sampler.h"

namespace pyflow {
namespace {

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
