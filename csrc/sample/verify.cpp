#include "sample/verify.h"

#include <algorithm>

#include "core/errors.h"

namespace pyflow {
namespace {

class Exact final : public Verifier {
 public:
  explicit Exact(const DraftView& draft) : draft_(draft), drawn_(draft.n_rows()) {}

  void look(size_t row, std::span<const float> logits) override {
    const std::vector<int32_t> path = draft_.path(row);
    const auto depth = static_cast<int64_t>(path.size());
    drawn_[row] = draft_.sampler.sample(logits, draft_.position + depth + 1, path);
  }

  Verdict walk() override {
    Verdict verdict;
    for (int32_t node = -1;;) {
      const Sampled& next =
          verdict.drawn.emplace_back(std::move(drawn_[static_cast<size_t>(node + 1)]));
      node = child(node, next.token);
      if (node < 0) return verdict;
      verdict.nodes.push_back(node);
    }
  }

 private:
  int32_t child(int32_t parent, int32_t token) const {
    for (size_t i = static_cast<size_t>(parent + 1); i < draft_.tokens.size(); ++i)
      if (draft_.parents[i] == parent && draft_.tokens[i] == token) return static_cast<int32_t>(i);
    return -1;
  }

  DraftView draft_;
  std::vector<Sampled> drawn_;  // by row
};

}  // namespace

void check_tree(std::span<const int32_t> tokens, std::span<const int32_t> parents) {
  if (tokens.size() != parents.size())
    throw ShapeError("draft: expected a parent for each of " + std::to_string(tokens.size()) +
                     " tokens, found " + std::to_string(parents.size()));
  for (size_t i = 0; i < parents.size(); ++i)
    if (parents[i] < -1 || parents[i] >= static_cast<int32_t>(i))
      throw ShapeError("draft: parent " + std::to_string(parents[i]) + " of node " +
                       std::to_string(i) + ": expected a node before it, or -1");
}

std::vector<int32_t> DraftView::path(size_t row) const {
  std::vector<int32_t> out;
  for (auto node = static_cast<int32_t>(row) - 1; node >= 0;
       node = parents[static_cast<size_t>(node)])
    out.push_back(tokens[static_cast<size_t>(node)]);
  std::reverse(out.begin(), out.end());
  return out;
}

std::unique_ptr<Verifier> make_verifier(const std::string& policy, const DraftView& draft) {
  check_tree(draft.tokens, draft.parents);
  if (policy == "exact") return std::make_unique<Exact>(draft);
  throw UnsupportedError("policy '" + policy + "': expected exact");
}

}  // namespace pyflow
