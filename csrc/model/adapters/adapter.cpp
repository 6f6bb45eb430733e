#include "model/adapters/adapter.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "core/errors.h"

namespace pyflow {

Adapter::Adapter(std::shared_ptr<const Stage> stage, TensorSource source,
                 const std::map<std::string, LowRankSpec>& specs, const std::function<void()>& poll)
    : stage_(std::move(stage)), weights_(source, std::nullopt, stage_->kernels()) {
  const std::string where = source.path + ": ";
  if (stage_->offloads())
    throw UnsupportedError(where +
                           "adapters need all layers on the CPU, and some are on a device; use "
                           "--gpu-layers 0");
  if (!stage_->source_layers().empty() || !stage_->chains().empty() || stage_->spec().embedded)
    throw UnsupportedError(where + "expected an adapter of a decoder; this model has an encoder");
  // A part of a model has some of the tensors only, and a member perhaps no row of one.
  const bool alone = stage_->spec().member.alone(),
             is_part = !stage_->first() || !stage_->last() || !alone;
  std::set<std::string> found;
  stage_->for_matrices([&](const TensorRef& ref, const PackedTensor& w) {
    const auto spec = specs.find(ref.name);
    if (spec == specs.end()) return;
    found.insert(ref.name);
    const auto& [a, b, rank, scale] = spec->second;
    const bool looked_up = &w == stage_->embedding() && &w != stage_->head().weight;
    if (looked_up && is_part) return;  // of a tied head, which is elsewhere
    if (looked_up || !stage_->is_adaptable(w) || ref.inputs.second > 0)
      throw UnsupportedError(where + "tensor " + a.name +
                             ": expected a matrix of attention, a feed-forward network or the "
                             "head, found experts, a router, heads of latents or an embedding: " +
                             ref.text());
    TensorRef outputs = b;
    if (!ref.rows.empty()) {
      outputs.rows = ref.rows;
      outputs.step = ref.step;
    }
    matrices_[&w] = {&weights_.matrix(a, rank, w.cols()), &weights_.matrix(outputs, w.rows(), rank),
                     static_cast<float>(scale)};
  });
  for (const auto& [name, spec] : specs)
    if (!found.contains(name) && (!is_part || (alone && stage_->used_tensors().contains(name))))
      throw ShapeError(where + "tensor " + spec.a.name +
                       ": expected one beside a matrix of the model, found " + name);
  weights_.pack(stage_->pool(), poll, nullptr);
}

AdapterSet::AdapterSet(std::vector<std::pair<std::shared_ptr<const Adapter>, float>> adapters) {
  for (auto& [adapter, factor] : adapters) {
    if (stage_ && stage_ != &adapter->stage())
      throw ShapeError("adapters: expected those of one model, found several");
    stage_ = &adapter->stage();
    for (const auto& [weight, low] : adapter->matrices()) {
      std::vector<Term>& terms = terms_[weight];
      const int64_t offset =
          terms.empty() ? 0 : terms.back().offset + padded(terms.back().a->rows());
      terms.push_back({low.a, low.b, low.scale * factor, offset});
      floats_ = std::max(floats_, offset + padded(low.a->rows()));
    }
    adapters_.push_back(std::move(adapter));
  }
}

}  // namespace pyflow
