#include "model/adapters/adapter.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <set>
#include <utility>

#include "core/errors.h"
#include "model/step.h"

namespace pyflow {

Adapter::Adapter(std::shared_ptr<const Stage> stage, TensorSource source, const Specs& specs,
                 const std::function<void()>& poll)
    : stage_(std::move(stage)),
      tensors_(std::move(source)),
      weights_(tensors_.source(), std::nullopt, stage_->kernels()) {
  const std::string where = tensors_.path() + ": ";
  if (stage_->offloads())
    throw UnsupportedError(where +
                           "adapters need all layers on the CPU, and some are on a device; use "
                           "--gpu-layers 0");
  if (!stage_->source_layers().empty() || !stage_->chains().empty() || stage_->spec().embedded)
    throw UnsupportedError(where + "expected an adapter of a decoder; this model has an encoder");
  // A part of a model has some of the tensors only, and a member perhaps no row of one.
  const bool alone = stage_->spec().member.alone(),
             is_part = !stage_->first() || !stage_->last() || !alone;
  std::unordered_multimap<std::string, const LowRankSpec*> by_name;
  for (const auto& [name, spec] : specs) by_name.emplace(name, &spec);
  std::set<const LowRankSpec*> found;
  stage_->for_matrices([&](const TensorRef& ref, const PackedTensor& w) {
    const auto [begin, end] = by_name.equal_range(ref.name);
    for (auto it = begin; it != end; ++it) {
      const LowRankSpec& spec = *it->second;
      if (spec.part >= 0 && spec.part != part_of(spec, ref)) continue;
      const bool has_rows = &w == stage_->embedding(),
                 multiplies = !has_rows || &w == stage_->head().weight,
                 is_elsewhere = spec.is_lookup ? !has_rows : !multiplies;
      // A tied head or embedding may be on another stage.
      if (!is_elsewhere || is_part) found.insert(&spec);
      if (is_elsewhere) continue;
      if (spec.is_lookup)
        stand_beside_rows(ref, w, spec);
      else
        stand_beside(ref, w, spec);
    }
  });
  for (const auto& [name, spec] : specs)
    if (!found.contains(&spec) && (!is_part || (alone && stage_->used_tensors().contains(name))))
      throw ShapeError(where + "tensor " + spec.a +
                       ": expected one beside a matrix of the model, found " + name);
  if (!stage_->is_loaded()) return;
  weights_.pack(stage_->pool(), poll, nullptr);
  check_values(poll);
  measure(poll);
}

size_t Adapter::nbytes() const {
  size_t n = weights_.nbytes(stage_->pool().placement().n_copies());
  for (const auto& [w, low] : matrices_)
    if (low.magnitude) n += RowNorms::nbytes(low.is_flipped ? w->cols() : w->rows());
  return n;
}

void Adapter::stand_beside(const TensorRef& ref, const PackedTensor& w, const LowRankSpec& spec) {
  if (!stage_->is_adaptable(w))
    throw UnsupportedError(tensors_.path() + ": tensor " + spec.a +
                           ": expected a matrix of attention, a feed-forward network, experts or "
                           "the head, found another: " +
                           ref.text());
  const Sides at = sides(spec, ref, tensors_, w.rows(), w.cols());
  LowRank low = {
      .a = &weights_.matrix(tensors_.cut(at.a, spec.rank, w.cols()), spec.rank, w.cols()),
      .b = &weights_.matrix(tensors_.cut(at.b, w.rows(), spec.rank), w.rows(), spec.rank),
      .scale = static_cast<float>(spec.scale),
      .name = spec.b,
      .is_flipped = at.is_flipped};
  if (!spec.magnitude.empty()) {
    if (spec.n_parts > 1)
      throw UnsupportedError(tensors_.path() + ": tensor " + spec.magnitude +
                             ": magnitudes of experts in one tensor are not supported");
    const TensorRef values = {.name = spec.magnitude, .rows = at.outputs, .step = at.step};
    low.magnitude = weights_.vector(values, at.is_flipped ? w.cols() : w.rows());
  }
  if (!matrices_.emplace(&w, std::move(low)).second)
    throw ShapeError(tensors_.path() + ": tensor " + spec.a +
                     ": expected one pair beside a matrix, found another for " + ref.text());
}

void Adapter::stand_beside_rows(const TensorRef& ref, const PackedTensor& w,
                                const LowRankSpec& spec) {
  const Piece a = {.name = spec.a, .across = !spec.by_row, .rows = ref.rows, .step = ref.step};
  lookup_.a = &weights_.matrix(tensors_.cut(a, w.rows(), spec.rank), w.rows(), spec.rank);
  lookup_.b =
      &weights_.matrix(tensors_.cut({.name = spec.b}, w.cols(), spec.rank), w.cols(), spec.rank);
  lookup_.scale = static_cast<float>(spec.scale);
  lookup_.name = spec.b;
  if (spec.magnitude.empty()) return;
  if (stage_->spec().member.of > 1)
    throw UnsupportedError(tensors_.path() + ": tensor " + spec.magnitude +
                           ": magnitudes of an embedding need all its rows in one place, and "
                           "members share them");
  lookup_.magnitude = weights_.vector({.name = spec.magnitude}, w.cols());
}

void Adapter::check_values(const std::function<void()>& poll) {
  const auto check = [&](const LowRank& low) {
    poll();
    std::atomic<bool> is_finite = true;
    stage_->pool().run([&](Team& team) {
      for (const PackedTensor* matrix : {low.a, low.b}) {
        std::vector<float> row(static_cast<size_t>(matrix->cols()));
        team.for_each(matrix->rows(), 64, [&](int64_t begin, int64_t end) {
          for (int64_t i = begin; i < end; ++i) {
            matrix->dequantize_row(i, row.data(), team.copy());
            if (!std::ranges::all_of(row, [](float x) { return std::isfinite(x); }))
              is_finite = false;
          }
        });
      }
    });
    const int64_t n = !low.magnitude ? 0 : low.is_flipped ? low.a->cols() : low.b->rows();
    if (!is_finite ||
        !std::all_of(low.magnitude, low.magnitude + n, [](float x) { return std::isfinite(x); }))
      throw FormatError(tensors_.path() + ": tensor " + low.name +
                        " and those beside it: expected finite values, found NaN or infinity");
  };
  for (const auto& [w, low] : matrices_) check(low);
  if (lookup_.a) check(lookup_);
}

void Adapter::measure(const std::function<void()>& poll) {
  for (auto& [w, low] : matrices_) {
    if (!low.magnitude) continue;
    poll();
    low.norms = low.is_flipped
                    ? RowNorms::of_columns(*w, *low.a, *low.b)
                    : RowNorms::of_rows(stage_->pool(), stage_->kernels(), *w, *low.a, *low.b);
    output_factors(low, 1);
  }
  if (!lookup_.magnitude) return;
  lookup_.norms = RowNorms::of_table(stage_->pool(), *stage_->embedding(), *lookup_.a, *lookup_.b);
  output_factors(lookup_, 1);
}

std::vector<float> Adapter::output_factors(const LowRank& low, float factor) const {
  std::vector<float> factors(static_cast<size_t>(padded(low.norms.size())), 1.0f);
  for (int64_t i = 0; i < low.norms.size(); ++i) {
    const double squared = low.norms.squared(i, static_cast<double>(low.scale * factor));
    const auto found = static_cast<float>(low.magnitude[i] / std::sqrt(squared));
    if (!(squared > 0) || !std::isfinite(found)) {
      const char* why = squared > 0 ? ": expected a magnitude of the size of weights, found another"
                                    : ": expected a sum with the model's weights that has a norm, "
                                      "found zeros";
      throw FormatError(tensors_.path() + ": tensor " + low.name + ": row " + std::to_string(i) +
                        why + " at a factor of " + std::to_string(factor));
    }
    factors[static_cast<size_t>(i)] = found;
  }
  return factors;
}

AdapterSet::Term AdapterSet::term(const Adapter& adapter, const Adapter::LowRank& low,
                                  float factor) {
  Term term = {.a = low.a, .b = low.b, .scale = low.scale * factor, .offset = 0};
  if (low.magnitude) {
    const float* factors = factors_.emplace_back(adapter.output_factors(low, factor)).data();
    (low.is_flipped ? term.in_factors : term.factors) = factors;
  }
  return term;
}

AdapterSet::AdapterSet(std::vector<std::pair<std::shared_ptr<const Adapter>, float>> adapters) {
  for (auto& [adapter, factor] : adapters) {
    if (stage_ && stage_ != &adapter->stage())
      throw ShapeError("adapters: expected those of one model, found several");
    stage_ = &adapter->stage();
    for (const auto& [weight, low] : adapter->matrices()) {
      std::vector<Term>& terms = terms_[weight];
      Term made = term(*adapter, low, factor);
      if (!terms.empty()) made.offset = terms.back().offset + padded(terms.back().a->rows());
      terms.push_back(made);
      row_floats_ = std::max(
          row_floats_, (made.offset + padded(low.a->rows())) * stage_->products_at_once(weight));
    }
    if (const Adapter::LowRank* low = adapter->lookup())
      lookups_.push_back(term(*adapter, *low, factor));
    adapters_.push_back(std::move(adapter));
  }
}

}  // namespace pyflow
