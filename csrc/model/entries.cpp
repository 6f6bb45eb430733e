#include "model/entries.h"

#include <algorithm>
#include <memory>
#include <mutex>

#include "core/errors.h"
#include "model/group/deciding.h"
#include "sample/policies/policies.h"

namespace pyflow {
namespace {

std::string str(int64_t n) { return std::to_string(n); }

int32_t likeliest(std::span<const float> logits) { return Logits(logits, {}).argmax(); }

// The token below which the tree hangs.
int32_t root_of(const Entry& entry) {
  return entry.root == kLastToken ? static_cast<int32_t>(entry.tokens.size()) - 1 : entry.root;
}

// Throws for what this entry alone is to blame for.
void check(const Entry& entry, const Context& context, int32_t position) {
  const int64_t n_vocab = context.stage().spec().n_vocab;
  const auto n = std::ssize(entry.tokens), n_nodes = std::ssize(entry.tree.tokens);
  const auto check_token = [&](const char* what, int32_t token) {
    if (token < 0 || token >= n_vocab)
      throw ShapeError(std::string(what) + " " + str(token) + ": expected 0 to " +
                       str(n_vocab - 1));
  };
  if (n == 0) throw ShapeError("entry: expected at least one token, found none");
  if (entry.root < kLastToken || entry.root >= n)
    throw ShapeError("draft: expected a root below " + str(n) + ", found " + str(entry.root));
  check_tree(entry.tree);
  for (const int32_t token : entry.tokens) check_token("token", token);
  for (const int32_t token : entry.tree.tokens) check_token("drafted token", token);
  if (!entry.sampler && (entry.tree.n_verified > 0 || entry.n_draws > 0 || !entry.masks.empty()))
    throw ShapeError("entry: drafts, draws and masks need a sampler");
  if (entry.n_draws < 0 || entry.n_draws > n ||
      (entry.n_draws > 0 && (entry.tree.n_verified > 0 || !entry.masks.empty())))
    throw ShapeError("entry: expected 0 to " + str(n) + " draws, without masks and verified " +
                     "nodes, found " + str(entry.n_draws));
  if (entry.regime == Regime::Prefill && n_nodes > 0)
    throw ShapeError("entry: drafts are decoded; give them after the prompt, regime decode");
  for (const int32_t node : entry.asked)
    if (node < -1 || node >= n_nodes)
      throw ShapeError("draft: asked for node " + str(node) + " of " + str(n_nodes));
  if (const auto words = static_cast<size_t>((n_vocab + 31) / 32) * entry.tree.n_rows();
      !entry.masks.empty() && entry.masks.size() != words)
    throw ShapeError("masks: expected " + str(static_cast<int64_t>(words)) + " words, found " +
                     str(std::ssize(entry.masks)));
  for (size_t i = 0; i < entry.reports.size(); ++i) {
    const Report& report = entry.reports[i];
    if (report.row < (i ? entry.reports[i - 1].row : 0) || report.row >= n || report.n_top < 0)
      throw ShapeError("reports: expected ascending rows below " + str(n) + ", found row " +
                       str(report.row));
    check_token("report: target", report.target);
  }
  for (const int32_t row : entry.hidden)
    if (row >= n || row < (entry.sampler ? kDrawnRow : 0))
      throw ShapeError("hidden: expected rows below " + str(n) + ", found " + str(row));
  int64_t last = position + n - 1;
  std::vector<int64_t> at;  // of the nodes
  for (const int32_t parent : entry.tree.parents) {
    at.push_back(1 + (parent < 0 ? position + root_of(entry) : at[static_cast<size_t>(parent)]));
    last = std::max(last, at.back());
  }
  if (last >= context.stage().n_positions())
    throw ShapeError("position " + str(last) + ": this model has learned " +
                     str(context.stage().n_positions()) + " positions, from 0 on");
  const int32_t next = context.kv().seq_pos_max(entry.seq) + 1;
  if (position < next)
    throw ShapeError("position " + str(position) + ": sequence " + str(entry.seq) +
                     " already has cells up to " + str(next - 1));
  if (entry.position != kNextPosition) return;  // runs before it may have been left out
  const int32_t reusable = context.kv().seq_reusable(entry.seq, next);
  if (reusable < next)
    throw ResourceError("KV cache: sequence " + str(entry.seq) + " at position " + str(position) +
                        " reaches back to cells that its window no longer holds; cut it to " +
                        str(reusable) + " positions (seq_rm) and compute the rest again");
}

// How likely a token is by a row of logits.
Sampled reported(std::span<const float> row, const Report& report) {
  const Logits logits(row, {});
  const double log_sum = logits.max() + portable::log(logits.sum_exp());
  const auto logprob = [&](float logit) { return logit - log_sum; };
  Sampled out{.token = report.target,
              .logprob = logprob(row[static_cast<size_t>(report.target)]),
              .top = {}};
  for (const Candidate& c : logits.top(report.n_top))
    out.top.emplace_back(c.token, logprob(c.logit));
  return out;
}

// The uses of the logits of a row.
struct Question {
  size_t entry;
  int64_t row;  // of the tree, 0 being the last token; -1: of the tokens before
  bool verified = false;
  int32_t draw = -1;                     // the number of the draw after this row
  std::vector<size_t> answers, reports;  // indices into those of the result
};

// The entries as rows of one step: those of prompts first.
class Batch {
 public:
  Batch(Context& context, std::span<const Entry> entries, bool resumed)
      : context_(context), entries_(entries) {
    results.resize(entries.size());
    verifiers_.resize(entries.size());
    first_.resize(entries.size());
    for (const Regime regime : {Regime::Prefill, Regime::Decode}) {
      for (size_t e = 0; e < entries.size(); ++e)
        if (entries[e].regime == regime) add(e);
      if (regime == Regime::Prefill) n_prefill = std::ssize(tokens);
    }
    if (resumed && !is(context.kv().pending()))
      throw ShapeError("draft: the pending rows are not those of the root and its nodes");
  }

  // Of several threads at once, for different questions.
  void look(int64_t i, std::span<const float> logits) {
    const Question& question = questions_[static_cast<size_t>(i)];
    const size_t e = question.entry;
    EntryResult& result = results[e];
    try {
      if (question.draw >= 0) draw(question, logits);
      if (question.verified) verifiers_[e]->look(static_cast<size_t>(question.row), logits);
      for (const size_t a : question.answers) result.answers[a] = likeliest(logits);
      for (const size_t r : question.reports)
        result.reports[r] = reported(logits, entries_[e].reports[r]);
    } catch (...) {
      fail(e, std::current_exception());
    }
  }

  // What of the logits look() needs of a member's columns.
  Deciding deciding() const {
    int64_t most = 0;
    for (const Question& question : questions_) {
      const int64_t n = n_deciding(question);
      if (n == kAllTokens) return {};
      most = std::max(most, n);
    }
    return {most, [this](int64_t i, std::span<const float> logits, const Share& own,
                         std::vector<Candidate>& out) { return deciding(i, logits, own, out); }};
  }

  // Decides, and turns what stands into cells.
  void finish() {
    std::vector<kv::Accepted> accepted;
    for (size_t e = 0; e < entries_.size(); ++e) {
      try {
        if (!results[e].error) decide(e);
      } catch (...) {
        fail(e, std::current_exception());
      }
      if (results[e].error) {
        results[e] = {{}, {}, {}, {}, results[e].error};
        continue;
      }
      const auto n = static_cast<int32_t>(entries_[e].tokens.size());
      for (int32_t i = 0; i < n; ++i) accepted.push_back({first_[e] + i, entries_[e].seq});
      for (const int32_t node : results[e].verdict.nodes)
        accepted.push_back({first_[e] + n + node, entries_[e].seq});
    }
    context_.each([&](Context& member) { member.kv().commit(accepted); });
    for (size_t e = 0; e < entries_.size(); ++e)
      if (entries_[e].n_draws == 0)
        for (const Sampled& s : results[e].verdict.drawn) entries_[e].sampler->accept(s);
  }

  std::vector<EntryResult> results;
  std::vector<int32_t> tokens, parents, wanted;
  std::vector<KvRow> rows;
  int64_t n_prefill = 0;

 private:
  int64_t n_deciding(const Question& question) const {
    const int64_t n_vocab = context_.stage().spec().n_vocab;
    if (!question.reports.empty()) return kAllTokens;
    int64_t n = question.answers.empty() ? 0 : 1;
    const auto add = [&n](int64_t more) {
      n = n == kAllTokens || more == kAllTokens ? kAllTokens : n + more;
    };
    if (question.draw >= 0)
      add(entries_[question.entry].sampler->n_deciding(n_vocab, /*whole=*/false));
    if (question.verified) add(verifiers_[question.entry]->n_deciding(n_vocab));
    return n;
  }

  bool deciding(int64_t i, std::span<const float> logits, const Share& own,
                std::vector<Candidate>& out) const {
    const Question& question = questions_[static_cast<size_t>(i)];
    const size_t e = question.entry;
    if (!question.answers.empty() && own.size() > 0) {
      const auto part =
          logits.subspan(static_cast<size_t>(own.begin), static_cast<size_t>(own.size()));
      const auto found = Logits::part(part, {}, {});
      if (!found) return false;
      if (found->max() > kNever) {
        const auto token = static_cast<int32_t>(own.begin + found->argmax());
        out.push_back({found->max(), token});
      }
    }
    if (question.draw >= 0) {
      const Drawing drawing = drawing_of(question);
      if (!entries_[e].sampler->deciding(logits, own.begin, own.end,
                                         {drawing.position, drawing.path}, out))
        return false;
    }
    return !question.verified || verifiers_[e]->deciding(static_cast<size_t>(question.row), logits,
                                                         own.begin, own.end, out);
  }

  void add(size_t e) {
    const Entry& entry = entries_[e];
    if (entry.seq < 0 || entry.seq >= context_.config().n_seq_max)
      throw ShapeError("sequence " + str(entry.seq) + ": expected 0 to " +
                       str(context_.config().n_seq_max - 1));
    // Pending rows are no cells yet.
    const int32_t position =
        entry.position == kNextPosition ? context_.kv().seq_pos_max(entry.seq) + 1 : entry.position;
    EntryResult& result = results[e];
    try {
      check(entry, context_, position);
      const auto n = static_cast<int32_t>(entry.tokens.size());
      if (entry.sampler && entry.n_draws == 0)
        verifiers_[e] = make_verifier(
            policy_named(entry.policy), entry.tree, *entry.sampler, position + n - 1,
            {entry.masks, static_cast<size_t>((context_.stage().spec().n_vocab + 31) / 32)});
    } catch (...) {
      result.error = std::current_exception();
      return;
    }
    result.verdict.drawn.resize(static_cast<size_t>(entry.n_draws));
    result.answers.resize(entry.asked.size());
    result.reports.resize(entry.reports.size());
    first_[e] = static_cast<int32_t>(tokens.size());
    const int32_t last = first_[e] + static_cast<int32_t>(entry.tokens.size()) - 1;
    for (size_t i = 0; i < entry.tokens.size(); ++i)
      push(entry.seq, entry.tokens[i], i ? static_cast<int32_t>(tokens.size()) - 1 : kv::kNoParent,
           position + static_cast<int32_t>(i));
    for (size_t i = 0; i < entry.tree.tokens.size(); ++i) {
      const int32_t above = entry.tree.parents[i];
      const int32_t parent = above < 0 ? first_[e] + root_of(entry) : last + 1 + above;
      push(entry.seq, entry.tree.tokens[i], parent, rows[static_cast<size_t>(parent)].position + 1);
    }
    ask(e, last);
  }

  void push(int seq, int32_t token, int32_t parent, int32_t position) {
    tokens.push_back(token);
    parents.push_back(parent);
    rows.push_back({position, {seq}});
  }

  // The rows of the step whose logits an entry wants. last: the row of its last token.
  void ask(size_t e, int32_t last) {
    const Entry& entry = entries_[e];
    size_t report = 0;
    const auto n_rows = static_cast<int64_t>(entry.tree.tokens.size()) + 1;
    for (int32_t row = first_[e]; row < last + n_rows; ++row) {
      Question question{
          .entry = e, .row = row < last ? -1 : int64_t{row} - last, .answers = {}, .reports = {}};
      question.verified = verifiers_[e] && question.row >= 0 &&
                          question.row < static_cast<int64_t>(entry.tree.n_rows());
      if (row <= last && row > last - entry.n_draws) question.draw = row - last + entry.n_draws - 1;
      for (size_t a = 0; a < entry.asked.size(); ++a)
        if (row == (entry.asked[a] < 0 ? first_[e] + root_of(entry) : last + 1 + entry.asked[a]))
          question.answers.push_back(a);
      for (; report < entry.reports.size() && first_[e] + entry.reports[report].row == row;
           ++report)
        question.reports.push_back(report);
      if (!question.verified && question.draw < 0 && question.answers.empty() &&
          question.reports.empty())
        continue;
      wanted.push_back(row);
      questions_.push_back(std::move(question));
    }
  }

  // Where plain decoding draws after a token that is a guess.
  struct Drawing {
    int64_t position;
    std::vector<int32_t> path;
  };
  Drawing drawing_of(const Question& question) const {
    const Entry& entry = entries_[question.entry];
    const int64_t i = std::ssize(entry.tokens) - entry.n_draws + question.draw;
    std::vector<int32_t> path = entry.path;
    path.insert(path.end(), entry.tokens.begin(), entry.tokens.begin() + i + 1);
    return {rows[static_cast<size_t>(first_[question.entry] + i)].position + 1, std::move(path)};
  }
  void draw(const Question& question, std::span<const float> logits) {
    const Drawing at = drawing_of(question);
    results[question.entry].verdict.drawn[static_cast<size_t>(question.draw)] =
        entries_[question.entry].sampler->sample(logits, {at.position, at.path});
  }

  void decide(size_t e) {
    const Entry& entry = entries_[e];
    EntryResult& result = results[e];
    if (verifiers_[e]) {
      result.verdict = verifiers_[e]->walk();
      cut_at_stop(result.verdict, entry.stops);
    }
    const auto n = static_cast<int32_t>(entry.tokens.size());
    const auto& nodes = result.verdict.nodes;
    const int64_t n_embd = context_.stage().spec().n_embd;
    result.hidden.resize(entry.hidden.size() * static_cast<size_t>(n_embd));
    float* out = result.hidden.data();
    for (const int32_t row : entry.hidden) {
      const int32_t drawn = nodes.empty() ? n - 1 : n + nodes.back();
      context_.copy_normed(first_[e] + (row == kDrawnRow ? drawn : row), out);
      out += n_embd;
    }
  }

  // Drops the draws after a stop token, and the cell of the stop token.
  static void cut_at_stop(Verdict& verdict, std::span<const int32_t> stops) {
    for (size_t i = 0; i + 1 < verdict.drawn.size(); ++i)
      if (std::ranges::find(stops, verdict.drawn[i].token) != stops.end()) {
        verdict.drawn.resize(i + 1);
        verdict.nodes.resize(i);
      }
  }

  void fail(size_t e, std::exception_ptr error) {
    const std::lock_guard guard(lock_);
    if (!results[e].error) results[e].error = std::move(error);
  }

  bool is(std::span<const KvRow> pending) const {
    return std::ranges::equal(pending, rows, [](const KvRow& a, const KvRow& b) {
      return a.position == b.position && a.sequences == b.sequences;
    });
  }

  Context& context_;
  std::span<const Entry> entries_;
  std::vector<std::unique_ptr<Verifier>> verifiers_;
  std::vector<int32_t> first_;       // row of each entry's first token
  std::vector<Question> questions_;  // per wanted row
  std::mutex lock_;
};

}  // namespace

std::vector<EntryResult> step(Context& context, std::span<const Entry> entries, const Begun& begun,
                              const std::function<bool()>& poll) {
  if (entries.empty()) throw ShapeError("step: expected at least one entry, found none");
  const bool resumes = begun.first_layer > 0;
  if (resumes && (entries.size() > 1 || entries[0].tokens.size() != 1))
    throw ShapeError("step: one entry of one token can go on from a layer");
  Batch batch(context, entries, resumes);
  if (batch.rows.empty()) return std::move(batch.results);
  const Deciding deciding = batch.deciding();
  Context::Input input{.tokens = {},
                       .hidden = begun.hidden,
                       .rows = {},
                       .parents = {},
                       .wanted = batch.wanted,
                       .n_prefill = batch.n_prefill,
                       .first_layer = begun.first_layer,
                       .deciding = &deciding};
  if (!resumes) {
    input.tokens = batch.tokens;
    input.rows = batch.rows;
    input.parents = batch.parents;
  }
  context.run(
      input, [&](int64_t i, std::span<const float> logits) { batch.look(i, logits); }, poll);
  try {
    batch.finish();
  } catch (...) {
    context.abort();
    throw;
  }
  return std::move(batch.results);
}

}  // namespace pyflow
