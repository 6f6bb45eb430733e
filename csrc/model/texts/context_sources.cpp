// Sources of a context: what its decoder sees of an encoder's rows.
#include <algorithm>
#include <cstring>
#include <string>

#include "core/errors.h"
#include "model/context.h"

namespace pyflow {

Sources& Context::sources(int seq) {
  if (!sources_)
    throw UnsupportedError("source: expected a model that reads sources, found one that does not");
  if (seq < 0 || seq >= config_.n_seq_max)
    throw ShapeError("sequence " + std::to_string(seq) + ": expected 0 to " +
                     std::to_string(config_.n_seq_max - 1));
  return *sources_;
}

void Context::see_sources(std::span<const KvRow> rows) {
  if (!sources_) return;
  source_views_.clear();
  for (const KvRow& row : rows) {
    const int seq = row.sequences.first();
    if (sources_->size(seq) == 0)
      throw ShapeError("sequence " + std::to_string(seq) +
                       ": expected a source, found none; read one first");
    source_views_.push_back(sources_->seen(seq));
  }
}

void Context::read_source(int seq, std::span<const float> states,
                          const std::function<bool()>& poll) {
  Sources& cells = sources(seq);
  const int64_t n_embd = stage_->spec().n_embd, n = std::ssize(states) / n_embd;
  if (n < 1 || n * n_embd != std::ssize(states))
    throw ShapeError("source: expected rows of " + std::to_string(n_embd) + " values, found " +
                     std::to_string(states.size()) + " values");
  if (kv_.seq_pos_max(seq) >= 0)
    throw ShapeError("sequence " + std::to_string(seq) +
                     ": expected none of its positions to be taken before its source is read");
  if (cells.size(seq) > 0)
    throw ShapeError("sequence " + std::to_string(seq) + ": expected no source, found one");
  abort();
  cancel_.store(false, std::memory_order_relaxed);
  last_rows_ = 0;
  try {
    for (int64_t at = 0, count; at < n; at += count) {
      if (at > 0 && ((poll && poll()) || cancel_.load(std::memory_order_relaxed)))
        throw CancelledError("stopped");
      count = std::min(config_.n_batch, n - at);
      cells.begin(seq, count);
      read_rows(states.subspan(static_cast<size_t>(at * n_embd)), count);
      cells.commit();
    }
  } catch (...) {
    cells.drop(seq);
    throw;
  }
}

// A source is given, so its keys and values take the arithmetic of prompts.
void Context::read_rows(std::span<const float> states, int64_t n) {
  const int64_t n_embd = stage_->spec().n_embd;
  const StepRows rows = {.n_rows = n,
                         .n_prefill = stage_->has_prefill() ? n : 0,
                         .first_row = 0,
                         .tokens = {},
                         .rows = {}};
  stage_->pool().run([&](Team& team) {
    Step s = step(team, rows);
    s.observer = nullptr;
    float* x = s.row_output(0);
    each_row(s, team, n, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        std::memcpy(x + r * s.stride, states.data() + r * n_embd,
                    static_cast<size_t>(n_embd) * sizeof(float));
    });
    for (const auto& layer : stage_->layers())
      for (const PlacedBlock& at : layer) at.block->read_source(s, team);
  });
}

void Context::share_source(int from, int to) { sources(to).share(from, to); }

void Context::drop_source(int seq) { sources(seq).drop(seq); }

void Context::clear() {
  kv_.clear();
  if (sources_) sources_->clear();
}

}  // namespace pyflow
