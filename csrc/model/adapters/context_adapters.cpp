// Adapters of a context's sequences.
#include <algorithm>
#include <utility>

#include "core/errors.h"
#include "model/context.h"

namespace pyflow {

void Context::adapt(int seq, std::shared_ptr<const AdapterSet> adapters) {
  if (kv_.seq_pos_max(seq) >= 0)
    throw ShapeError("sequence " + std::to_string(seq) +
                     ": expected none of its positions to be taken before it gets adapters");
  if (adapters && adapters->stage() != stage_.get())
    throw ShapeError("adapters: expected those of this model, found those of another");
  if (const int64_t floats = adapters ? adapters->row_floats() : 0; floats > low_rank_stride_) {
    low_rank_ = Buffer(static_cast<size_t>(config_.n_batch * floats) * sizeof(float), "adapters");
    low_rank_stride_ = floats;
  }
  adapters_[static_cast<size_t>(seq)] = std::move(adapters);
}

void Context::adapt_rows(std::span<const KvRow> rows) {
  row_adapters_.clear();
  if (std::ranges::none_of(adapters_, [](const auto& set) { return set != nullptr; })) return;
  for (const KvRow& row : rows)
    row_adapters_.push_back(adapters_[static_cast<size_t>(row.sequences.first())].get());
}

}  // namespace pyflow
