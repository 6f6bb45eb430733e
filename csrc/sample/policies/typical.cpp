// Medusa's typical acceptance (Cai et al., 2024, section 2.3.1): accept a drafted token if its
// probability is above min(eps, delta e^-H), where H is the entropy of the model's distribution: if
// many tokens are possible, less likely ones are accepted. Takes the longest accepted path, of
// equally long ones the likeliest, and draws one token after it. Lossy.
#include <algorithm>

#include "core/portable_math.h"
#include "sample/policies/policies.h"

namespace pyflow {
namespace {

// Medusa's own: delta is the square root of eps.
constexpr double kEpsilon = 0.09, kDelta = 0.3;

// A probability above this is typical.
double threshold(const Distribution& distribution, double sum) {
  double minus_entropy = 0;
  for (const Weighted& w : distribution)
    if (const double p = w.weight / sum; p > 0) minus_entropy += p * portable::log(p);
  return std::min(kEpsilon, kDelta * portable::exp(std::min(minus_entropy, 0.0)));
}

struct Row {
  bool stands = false;
  int depth = 0;
  double probability = 1;  // of its path
};

}  // namespace

Outcome verify_typical(const DraftTree& tree, std::span<const Distribution> target, Rng& rng) {
  std::vector<Row> rows(tree.n_rows());
  rows[0].stands = true;
  size_t best = 0;
  for (size_t row = 0; row < rows.size(); ++row) {
    if (!rows[row].stands) continue;
    if (const Row &r = rows[row], &b = rows[best];
        r.depth > b.depth || (r.depth == b.depth && r.probability > b.probability))
      best = row;
    const double sum = total(target[row]);
    const double least = threshold(target[row], sum);
    const auto node = static_cast<int32_t>(row) - 1;
    for (int32_t c = tree.first_child(node); c >= 0; c = tree.next_sibling(c)) {
      const auto child = static_cast<size_t>(c);
      const double p = weight_of(target[row], tree.tokens[child]) / sum;
      rows[child + 1] = {p > least, rows[row].depth + 1, rows[row].probability * p};
    }
  }
  Outcome out;
  for (auto node = static_cast<int32_t>(best) - 1; node >= 0;
       node = tree.parents[static_cast<size_t>(node)])
    out.nodes.push_back(node);
  std::ranges::reverse(out.nodes);
  out.last = draw(target[best], rng);
  return out;
}

}  // namespace pyflow
