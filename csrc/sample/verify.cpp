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
  Exact(const DraftTree& tree, const Sampler& sampler, int64_t position, RowMasks masks)
      : tree_(tree), sampler_(sampler), position_(position), masks_(masks), drawn_(tree.n_rows()) {}

  void look(size_t row, std::span<const float> logits) override {
    const std::vector<int32_t> path = tree_.path(row);
    const auto depth = static_cast<int64_t>(path.size());
    drawn_[row] = sampler_.sample(logits, position_ + depth + 1, path, masks_.row(row));
  }

  Verdict walk() override {
    Verdict verdict;
    for (int32_t node = -1;;) {
      const Sampled& next =
          verdict.drawn.emplace_back(std::move(drawn_[static_cast<size_t>(node + 1)]));
      node = tree_.first_child(node);
      while (node >= 0 && tree_.tokens[static_cast<size_t>(node)] != next.token)
        node = tree_.next_sibling(node);
      if (node < 0) return verdict;
      verdict.nodes.push_back(node);
    }
  }

 private:
  const DraftTree& tree_;
  const Sampler& sampler_;
  const int64_t position_;
  const RowMasks masks_;
  std::vector<Sampled> drawn_;  // by row
};

// Decides at random, by the distributions of all rows.
class ByDistribution final : public Verifier {
 public:
  ByDistribution(Verify verify, const DraftTree& tree, const Sampler& sampler, int64_t position,
                 RowMasks masks)
      : verify_(verify),
        tree_(tree),
        sampler_(sampler),
        position_(position),
        masks_(masks),
        target_(tree.n_rows()),
        logits_(tree.n_rows()) {}

  void look(size_t row, std::span<const float> logits) override {
    target_[row] = sampler_.distribution(logits, tree_.path(row), masks_.row(row));
    // Logprobs are those of a token that is not known yet.
    if (sampler_.params().n_logprobs > 0) logits_[row].assign(logits.begin(), logits.end());
  }

  Verdict walk() override {
    const SamplerParams& params = sampler_.params();
    KeyedRng rng(params.seed, params.stream, position_);
    Outcome outcome = verify_(tree_, target_, rng);
    Verdict verdict;
    size_t row = 0;
    for (const int32_t node : outcome.nodes) {
      verdict.drawn.push_back(
          sampler_.report(logits_[row], tree_.tokens[static_cast<size_t>(node)]));
      row = static_cast<size_t>(node + 1);
    }
    verdict.drawn.push_back(sampler_.report(logits_[row], outcome.last));
    verdict.nodes = std::move(outcome.nodes);
    return verdict;
  }

 private:
  Verify verify_;
  const DraftTree& tree_;
  const Sampler& sampler_;
  const int64_t position_;
  const RowMasks masks_;
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

std::unique_ptr<Verifier> make_verifier(const Policy& policy, const DraftTree& tree,
                                        const Sampler& sampler, int64_t position, RowMasks masks) {
  check_tree(tree);
  if (policy.verify == nullptr) return std::make_unique<Exact>(tree, sampler, position, masks);
  check_distributions(tree);
  return std::make_unique<ByDistribution>(policy.verify, tree, sampler, position, masks);
}

}  // namespace pyflow
