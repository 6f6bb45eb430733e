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

// The rows that a policy looks at, and where they lie.
class Rows {
 public:
  Rows(const DraftTree& tree, const Sampler& sampler, int64_t position, RowMasks masks)
      : tree_(tree),
        sampler_(sampler),
        position_(position),
        masks_(masks),
        logits_(tree.n_rows()) {}

  // path: tokens below the root up to the row.
  Place place(size_t row, std::span<const int32_t> path,
              std::span<const double> surprises = {}) const {
    return {position_ + static_cast<int64_t>(path.size()) + 1, path, masks_.row(row), surprises};
  }
  bool deciding(size_t row, std::span<const float> logits, int64_t first, int64_t end,
                std::vector<Candidate>& out) const {
    const std::vector<int32_t> path = tree_.path(row);
    return sampler_.deciding(logits, first, end, place(row, path), out);
  }
  void keep(size_t row, std::span<const float> logits) {
    logits_[row].assign(logits.begin(), logits.end());
  }
  std::span<const float> logits(size_t row) const { return logits_[row]; }
  const DraftTree& tree() const { return tree_; }
  const Sampler& sampler() const { return sampler_; }
  int64_t position() const { return position_; }

 private:
  const DraftTree& tree_;
  const Sampler& sampler_;
  const int64_t position_;
  const RowMasks masks_;
  std::vector<std::vector<float>> logits_;  // those that are kept
};

class Exact final : public Verifier {
 public:
  explicit Exact(Rows rows) : rows_(std::move(rows)), drawn_(rows_.tree().n_rows()) {}

  int64_t n_deciding(int64_t n_vocab) const override {
    return rows_.sampler().n_deciding(n_vocab, /*whole=*/false);
  }
  bool deciding(size_t row, std::span<const float> logits, int64_t first, int64_t end,
                std::vector<Candidate>& out) const override {
    return rows_.deciding(row, logits, first, end, out);
  }

  void look(size_t row, std::span<const float> logits) override {
    if (rows_.sampler().needs_surprises()) return rows_.keep(row, logits);
    const std::vector<int32_t> path = rows_.tree().path(row);
    drawn_[row] = rows_.sampler().sample(logits, rows_.place(row, path));
  }

  Verdict walk() override {
    const DraftTree& tree = rows_.tree();
    Verdict verdict;
    std::vector<int32_t> path;
    std::vector<double> surprises;
    for (int32_t node = -1;;) {
      const auto row = static_cast<size_t>(node + 1);
      if (rows_.sampler().needs_surprises())
        drawn_[row] = rows_.sampler().sample(rows_.logits(row), rows_.place(row, path, surprises));
      const Sampled& next = verdict.drawn.emplace_back(std::move(drawn_[row]));
      path.push_back(next.token);
      surprises.push_back(next.surprise);
      node = tree.first_child(node);
      while (node >= 0 && tree.tokens[static_cast<size_t>(node)] != next.token)
        node = tree.next_sibling(node);
      if (node < 0) return verdict;
      verdict.nodes.push_back(node);
    }
  }

 private:
  Rows rows_;
  std::vector<Sampled> drawn_;  // by row
};

// Decides at random, by the distributions of all rows.
class ByDistribution final : public Verifier {
 public:
  ByDistribution(Verify verify, Rows rows)
      : verify_(verify),
        rows_(std::move(rows)),
        target_(rows_.tree().n_rows()),
        surprises_(rows_.tree().n_rows()) {}

  int64_t n_deciding(int64_t n_vocab) const override {
    return rows_.sampler().n_deciding(n_vocab, /*whole=*/true);
  }
  bool deciding(size_t row, std::span<const float> logits, int64_t first, int64_t end,
                std::vector<Candidate>& out) const override {
    return rows_.deciding(row, logits, first, end, out);
  }

  void look(size_t row, std::span<const float> logits) override {
    const Sampler& sampler = rows_.sampler();
    // Logprobs and surprises are those of a token that is not known yet.
    if (sampler.needs_surprises() || sampler.params().n_logprobs > 0) rows_.keep(row, logits);
    if (sampler.needs_surprises()) return;
    const std::vector<int32_t> path = rows_.tree().path(row);
    target_[row] = sampler.distribution(logits, rows_.place(row, path));
  }

  Verdict walk() override {
    const SamplerParams& params = rows_.sampler().params();
    if (rows_.sampler().needs_surprises()) find_targets();
    KeyedRng rng(params.seed, params.stream, rows_.position());
    Outcome outcome = verify_(rows_.tree(), target_, rng);
    Verdict verdict;
    size_t row = 0;
    for (const int32_t node : outcome.nodes) {
      verdict.drawn.push_back(drawn(row, rows_.tree().tokens[static_cast<size_t>(node)]));
      row = static_cast<size_t>(node + 1);
    }
    verdict.drawn.push_back(drawn(row, outcome.last));
    verdict.nodes = std::move(outcome.nodes);
    return verdict;
  }

 private:
  // From the root down, for each row needs the surprises on its way.
  void find_targets() {
    const DraftTree& tree = rows_.tree();
    for (size_t row = 0; row < target_.size(); ++row) {
      const std::vector<int32_t> path = tree.path(row);
      if (row > 0) {
        const auto above = static_cast<size_t>(tree.parents[row - 1] + 1);
        surprises_[row] = surprises_[above];
        surprises_[row].push_back(surprise(above, path.back()));
      }
      target_[row] =
          rows_.sampler().distribution(rows_.logits(row), rows_.place(row, path, surprises_[row]));
    }
  }

  double surprise(size_t row, int32_t token) const {
    const std::vector<int32_t> path = rows_.tree().path(row);
    return rows_.sampler().surprise(rows_.logits(row), rows_.place(row, path), token);
  }

  Sampled drawn(size_t row, int32_t token) const {
    Sampled out = rows_.sampler().report(rows_.logits(row), token);
    if (rows_.sampler().needs_surprises()) out.surprise = surprise(row, token);
    return out;
  }

  Verify verify_;
  Rows rows_;
  std::vector<Distribution> target_;  // by row
  std::vector<std::vector<double>> surprises_;
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
  Rows rows(tree, sampler, position, masks);
  if (policy.verify == nullptr) return std::make_unique<Exact>(std::move(rows));
  check_distributions(tree);
  return std::make_unique<ByDistribution>(policy.verify, std::move(rows));
}

}  // namespace pyflow
