#include "model/verification.h"

#include <algorithm>

#include "core/errors.h"

namespace pyflow {
namespace {

void check_asked(const Draft& draft) {
  const auto n = static_cast<int64_t>(draft.tree.tokens.size());
  for (const int32_t node : draft.asked)
    if (node < -1 || node >= n)
      throw ShapeError("draft: asked for node " + std::to_string(node) + " of " +
                       std::to_string(n));
}

// A use of the logits of a row.
struct Question {
  size_t draft;
  size_t row;  // of the draft
  bool verified = false;
  std::vector<size_t> answers;  // indices into Verified::answers
};

int32_t likeliest(std::span<const float> logits) { return Logits(logits, {}).argmax(); }

// The drafts as rows of one step.
struct Batch {
  std::vector<int32_t> tokens, parents, wanted;
  std::vector<KvRow> rows;
  std::vector<size_t> first;        // per draft: its root's row
  std::vector<Question> questions;  // per wanted row

  Batch(const KvCache& kv, std::span<const Draft> drafts, bool resumed) {
    for (size_t d = 0; d < drafts.size(); ++d) {
      const Draft& draft = drafts[d];
      const auto root = static_cast<int32_t>(tokens.size());
      first.push_back(tokens.size());
      if (draft.seq < 0 || draft.seq >= kMaxSequences)
        throw ShapeError("sequence " + std::to_string(draft.seq) + ": expected 0 to " +
                         std::to_string(kMaxSequences - 1));
      // Pending rows are no cells yet.
      const int32_t position = kv.seq_pos_max(draft.seq) + 1;
      tokens.push_back(draft.root);
      parents.push_back(kv::kNoParent);
      rows.push_back({position, {draft.seq}});
      for (size_t i = 0; i < draft.tree.tokens.size(); ++i) {
        tokens.push_back(draft.tree.tokens[i]);
        parents.push_back(root + 1 + draft.tree.parents[i]);
        rows.push_back({rows[static_cast<size_t>(parents.back())].position + 1, {draft.seq}});
      }
      ask(d, draft);
    }
    if (resumed && !same(kv.pending()))
      throw ShapeError("draft: the pending rows are not those of the root and its nodes");
  }

 private:
  void ask(size_t d, const Draft& draft) {
    for (size_t row = 0; row <= draft.tree.tokens.size(); ++row) {
      Question question{d, row, row < draft.tree.n_rows(), {}};
      for (size_t a = 0; a < draft.asked.size(); ++a)
        if (static_cast<size_t>(draft.asked[a] + 1) == row) question.answers.push_back(a);
      if (!question.verified && question.answers.empty()) continue;
      wanted.push_back(static_cast<int32_t>(first[d] + row));
      questions.push_back(std::move(question));
    }
  }

  bool same(std::span<const KvRow> pending) const {
    return std::ranges::equal(pending, rows, [](const KvRow& a, const KvRow& b) {
      return a.position == b.position && a.sequences == b.sequences;
    });
  }
};

// Drops the draws after a stop token, and the cell of the stop token.
void cut_at_stop(Verdict& verdict, std::span<const int32_t> stops) {
  for (size_t i = 0; i + 1 < verdict.drawn.size(); ++i)
    if (std::ranges::find(stops, verdict.drawn[i].token) != stops.end()) {
      verdict.drawn.resize(i + 1);
      verdict.nodes.resize(i);
    }
}

}  // namespace

std::vector<Verified> verify(Context& context, std::span<const Draft> drafts,
                             const VerifyOptions& options, const std::function<bool()>& poll) {
  if (drafts.empty()) throw ShapeError("verify: expected at least one draft, found none");
  const bool resumed = options.first_layer > 0;
  const Policy& policy = policy_named(options.policy);
  std::vector<std::unique_ptr<Verifier>> verifiers;
  for (const Draft& draft : drafts) {
    verifiers.push_back(
        make_verifier(policy, draft.tree, *draft.sampler, context.kv().seq_pos_max(draft.seq) + 1));
    check_asked(draft);
  }
  const Batch batch(context.kv(), drafts, resumed);
  std::vector<Verified> out(drafts.size());
  for (size_t d = 0; d < drafts.size(); ++d) out[d].answers.resize(drafts[d].asked.size());

  const Context::Input input{
      .tokens = resumed ? std::span<const int32_t>() : std::span<const int32_t>(batch.tokens),
      .hidden = options.features,
      .rows = resumed ? std::span<const KvRow>() : std::span<const KvRow>(batch.rows),
      .parents = resumed ? std::span<const int32_t>() : std::span<const int32_t>(batch.parents),
      .wanted = batch.wanted,
      .regime = Regime::Decode,
      .first_layer = options.first_layer};
  context.run(
      input,
      [&](int64_t i, std::span<const float> logits) {
        const Question& question = batch.questions[static_cast<size_t>(i)];
        if (question.verified) verifiers[question.draft]->look(question.row, logits);
        for (const size_t a : question.answers) out[question.draft].answers[a] = likeliest(logits);
      },
      poll);

  try {
    std::vector<kv::Accepted> accepted;
    for (size_t d = 0; d < drafts.size(); ++d) {
      Verdict& verdict = out[d].verdict = verifiers[d]->walk();
      cut_at_stop(verdict, options.stops);
      const auto root = static_cast<int32_t>(batch.first[d]);
      accepted.push_back({root, drafts[d].seq});
      for (const int32_t node : verdict.nodes) accepted.push_back({root + 1 + node, drafts[d].seq});
      if (options.hidden) {
        out[d].hidden.resize(static_cast<size_t>(context.stage().spec().n_embd));
        context.copy_normed(accepted.back().row, out[d].hidden.data());
      }
    }
    context.kv().commit(accepted);
  } catch (...) {
    context.abort();
    throw;
  }
  for (size_t d = 0; d < drafts.size(); ++d)
    for (const Sampled& s : out[d].verdict.drawn) drafts[d].sampler->accept(s.token);
  return out;
}

}  // namespace pyflow
