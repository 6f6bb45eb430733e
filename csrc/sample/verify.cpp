#include "sample/verify.h"

#include "core/errors.h"

namespace pyflow {
namespace {

constexpr Policy kPolicies[] = {
    {"exact", "exact", nullptr},
    {"rejection", "distribution", verify_rejection},
    {"flexible", "lossy", verify_flexible},
    {"typical", "lossy", verify_typical},
};

class Exact final : public Verifier {
 public:
  explicit Exact(const DraftView& draft) : draft_(draft), drawn_(draft.tree.n_rows()) {}

  void look(size_t row, std::span<const float> logits) override {
    const std::vector<int32_t> path = draft_.tree.path(row);
    const auto depth = static_cast<int64_t>(path.size());
    drawn_[row] = draft_.sampler.sample(logits, draft_.position + depth + 1, path);
  }

  Verdict walk() override {
    Verdict verdict;
    for (int32_t node = -1;;) {
      const Sampled& next =
          verdict.drawn.emplace_back(std::move(drawn_[static_cast<size_t>(node + 1)]));
      node = draft_.tree.first_child(node);
      while (node >= 0 && draft_.tree.tokens[static_cast<size_t>(node)] != next.token)
        node = draft_.tree.next_sibling(node);
      if (node < 0) return verdict;
      verdict.nodes.push_back(node);
    }
  }

 private:
  DraftView draft_;
  std::vector<Sampled> drawn_;  // by row
};

// Decides at random, by the distributions of all rows.
class ByDistribution final : public Verifier {
 public:
  ByDistribution(Verify verify, const DraftView& draft)
      : verify_(verify),
        draft_(draft),
        target_(draft.tree.n_rows()),
        logits_(draft.tree.n_rows()) {}

  void look(size_t row, std::span<const float> logits) override {
    target_[row] = draft_.sampler.distribution(logits, draft_.tree.path(row));
    // Logprobs are those of a token that is not known yet.
    if (draft_.sampler.params().n_logprobs > 0) logits_[row].assign(logits.begin(), logits.end());
  }

  Verdict walk() override {
    const SamplerParams& params = draft_.sampler.params();
    KeyedRng rng(params.seed, params.stream, draft_.position);
    Outcome outcome = verify_(draft_.tree, target_, rng);
    Verdict verdict;
    size_t row = 0;
    for (const int32_t node : outcome.nodes) {
      verdict.drawn.push_back(
          draft_.sampler.report(logits_[row], draft_.tree.tokens[static_cast<size_t>(node)]));
      row = static_cast<size_t>(node + 1);
    }
    verdict.drawn.push_back(draft_.sampler.report(logits_[row], outcome.last));
    verdict.nodes = std::move(outcome.nodes);
    return verdict;
  }

 private:
  Verify verify_;
  DraftView draft_;
  std::vector<Distribution> target_;        // by row
  std::vector<std::vector<float>> logits_;  // by row, if logprobs are wanted
};

}  // namespace

std::span<const Policy> policies() { return kPolicies; }

const Policy& policy_named(const std::string& name) {
  std::string names;
  for (const Policy& policy : kPolicies) {
    if (name == policy.name) return policy;
    names += (names.empty() ? "" : ", ") + std::string(policy.name);
  }
  throw UnsupportedError("policy '" + name + "': expected one of " + names);
}

std::unique_ptr<Verifier> make_verifier(const Policy& policy, const DraftView& draft) {
  check_tree(draft.tree);
  if (policy.verify == nullptr) return std::make_unique<Exact>(draft);
  check_distributions(draft.tree);
  return std::make_unique<ByDistribution>(policy.verify, draft);
}

}  // namespace pyflow
