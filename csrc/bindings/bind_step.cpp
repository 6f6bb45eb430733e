// Steps: their entries, and trees that grow until a step or `commit` ends them. Conversion only.
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/convert.h"
#include "bindings/run.h"
#include "model/entries.h"

namespace pyflow {
namespace {

using Tokens = std::vector<int32_t>;
using ReportOf = std::tuple<int32_t, int32_t, int>;  // row, target, likeliest to name

// A tree that an entry drafts, and how it is verified.
struct Draft {
  DraftTree tree;
  Tokens asked;
  std::string policy = "exact";
  Tokens stops;
};

Draft make_draft(Tokens nodes, Tokens parents, int64_t n_verified,
                 const std::vector<Pairs>& distributions, Tokens asked, const std::string& policy,
                 Tokens stops) {
  if (n_verified < 0) n_verified = std::ssize(nodes);
  return {{std::move(nodes), std::move(parents), distributions_of(distributions), n_verified},
          std::move(asked),
          policy,
          std::move(stops)};
}

Entry make_entry(int seq, Tokens tokens, Sampler* sampler, const Draft& draft,
                 const py::object& masks, const std::vector<ReportOf>& reports, Tokens hidden,
                 const std::string& regime) {
  Entry entry{.seq = checked_sequence(seq),
              .tokens = std::move(tokens),
              .tree = draft.tree,
              .root = kLastToken,
              .sampler = sampler,
              .policy = draft.policy,
              .path = {},
              .stops = draft.stops,
              .asked = draft.asked,
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

// An entry of tokens that are guesses, with a tree below the first: see Entry::n_draws.
Entry make_guessed(int seq, int32_t position, Tokens tokens, Sampler* sampler, Tokens path,
                   int32_t n_draws, const Draft& draft, const std::string& regime) {
  if (position < 0)
    throw ShapeError("position: expected 0 or more, found " + std::to_string(position));
  Entry entry = make_entry(seq, std::move(tokens), sampler, draft, py::none(), {}, {}, regime);
  entry.position = position;
  entry.root = 0;
  entry.path = std::move(path);
  entry.n_draws = n_draws;
  return entry;
}

std::vector<EntryResult> run_step(Context& c, const std::vector<Entry*>& given, int64_t first_layer,
                                  const FloatArray& hidden) {
  std::vector<Entry> entries;
  for (const Entry* entry : given) entries.push_back(*entry);
  std::vector<EntryResult> out;
  run_released(c, [&](const std::function<bool()>& poll) {
    out = step(c, entries, {first_layer, floats(hidden)}, poll);
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
        found[static_cast<size_t>(i)] = sampler.guess(logits, {position + 1, path}, n, purpose);
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
  py::array_t<float> out({static_cast<py::ssize_t>(tokens.size()),
                          static_cast<py::ssize_t>(c.stage().spec().row_width())});
  c.copy_hidden(out.mutable_data());
  return out;
}

}  // namespace

void register_step(py::module_& m) {
  py::dict promises;
  for (const Policy& policy : policies()) promises[policy.name] = policy.promise;
  m.attr("POLICIES") = promises;
  py::class_<Draft>(m, "Draft")
      .def(py::init(&make_draft), py::arg("nodes"), py::arg("parents"), py::arg("n_verified") = -1,
           py::kw_only(), py::arg("distributions") = std::vector<Pairs>(),
           py::arg("asked") = Tokens(), py::arg("policy") = "exact", py::arg("stops") = Tokens());
  py::class_<Entry>(m, "Entry")
      .def(py::init(&make_entry), py::arg("seq"), py::arg("tokens"), py::arg("sampler") = nullptr,
           py::kw_only(), py::arg("draft") = Draft{}, py::arg("masks") = py::none(),
           py::arg("reports") = std::vector<ReportOf>(), py::arg("hidden") = Tokens(),
           py::arg("regime") = "decode", py::keep_alive<1, 4>())
      .def_static("guessed", &make_guessed, py::arg("seq"), py::arg("position"), py::arg("tokens"),
                  py::arg("sampler") = nullptr, py::kw_only(), py::arg("path") = Tokens(),
                  py::arg("n_draws") = 0, py::arg("draft") = Draft{}, py::arg("regime") = "decode",
                  py::keep_alive<0, 4>())
      .def_readonly("seq", &Entry::seq)
      .def_property_readonly(
          "regime",
          [](const Entry& e) { return e.regime == Regime::Prefill ? "prefill" : "decode"; })
      .def_property_readonly(
          "sampler", [](const Entry& e) { return e.sampler; }, py::return_value_policy::reference)
      .def_readwrite("tokens", &Entry::tokens)
      .def_readwrite("hidden", &Entry::hidden);
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
        py::arg("hidden") = FloatArray(0));
  m.def("guess", &guess, py::arg("context"), py::arg("tokens"), py::arg("parents"), py::arg("seq"),
        py::arg("wanted"), py::arg("sampler"), py::arg("n"), py::arg("distribution") = false);
  m.def("exit_layer", &exit_layer, py::arg("context"), py::arg("tokens"), py::arg("parents"),
        py::arg("seq"), py::arg("layer"));
  m.def(
      "commit",
      [](Context& c, const AcceptedRows& accepted) {
        const auto rows = accepted_rows(accepted);
        c.each([&](Context& member) { member.kv().commit(rows); });
      },
      py::arg("context"), py::arg("accepted"));
  m.def("abort", &Context::abort, py::arg("context"));
}

}  // namespace pyflow
