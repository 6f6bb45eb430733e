#include "model/context.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <exception>

#include "core/errors.h"
#include "model/input_squares.h"

namespace pyflow {
namespace {

// Rows whose logits are held at once: one pass over the head serves them, and a vocabulary of
// 262144 takes 32 MiB.
constexpr int64_t kHeadRows = 32;
// Attention is cut at spans for fewer rows than this (blocks/attention.cpp).
constexpr int64_t kSplitRows = 8;
constexpr int64_t kPollNs = 50'000'000;

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

KvConfig kv_config(const Stage& stage, const ContextConfig& c) {
  const auto rotate = [&stage, n_ctx = c.n_ctx](size_t layer, float* k, int32_t delta) {
    const RopeSpec* of_keys = stage.kv_rope(layer);
    if (!of_keys) return;  // they know nothing of their positions
    const RopeSpec& rope = *of_keys;
    const std::vector<double>& inv_freq = rope.inv_freq_at(n_ctx);
    const int64_t pairs = static_cast<int64_t>(rope.pairs());
    std::vector<float> cos_sin(2 * rope.pairs());
    for (int64_t i = 0; i < pairs; ++i) {
      const double angle = delta * inv_freq[static_cast<size_t>(i)];
      cos_sin[static_cast<size_t>(i)] = static_cast<float>(std::cos(angle));
      cos_sin[static_cast<size_t>(pairs + i)] = static_cast<float>(std::sin(angle));
    }
    const LayerKv& kv = stage.kv_layers()[layer];
    for (int64_t h = 0; h < kv.n_kv_heads; ++h)
      stage.kernels().rope(k + h * kv.head_dim, cos_sin.data(), pairs, rope.interleaved);
  };
  const auto place = [&stage](const Buffer& cells) {
    if (stage.pool().placement().mode() != Numa::Off) stage.pool().placement().spread(cells);
  };
  KvConfig config = {stage.kv_layers(), c.cache_type, c.n_ctx, c.n_seq_max,
                     c.n_batch,         rotate,       place};
  if (!stage.shifts()) config.rotate = nullptr;
  return config;
}

}  // namespace

// Where everything lies in the scratch buffer, in bytes from its start.
struct Context::Layout {
  int64_t stride, head_stride, head_rows, partial_floats, row_floats, acts_per_row;
  // Registers that the stage does not use are nowhere.
  std::array<size_t, kRegisters> registers{}, own_registers{};
  bool has_pairs;
  size_t temp, row_temp, acts, pairs, partials, gathered, logits, ropes, own_row_temp, own_acts,
      own_pairs, total = 0;

  Layout(const Stage& stage, const ContextConfig& c) {
    const ScratchNeeds& needs = stage.needs();
    stride = padded(stage.spec().n_embd);
    head_stride = padded(stage.spec().n_vocab);
    head_rows = stage.last() ? std::min(kHeadRows, c.n_batch) : 0;
    partial_floats =
        needs.partial_floats * std::min(kSplitRows, c.n_batch) * (c.n_ctx / kLogicalSpan + 2);
    int64_t rope_floats = 0;
    for (const RopeSpec& r : stage.spec().ropes) rope_floats += 2 * static_cast<int64_t>(r.pairs());
    row_floats = needs.row_floats_per_row;
    acts_per_row = needs.act_blocks_per_row;
    for (size_t r = 0; r < needs.n_registers; ++r) registers[r] = take(c.n_batch * stride * 4);
    temp = take(c.n_batch * needs.floats_per_row * 4);
    row_temp = take(c.n_batch * row_floats * 4);
    acts = take(c.n_batch * acts_per_row * static_cast<int64_t>(sizeof(ActBlock)));
    has_pairs = stage.fine_inputs();
    const int64_t pairs_per_row = has_pairs ? 2 * acts_per_row : 0;
    pairs = take(c.n_batch * pairs_per_row * static_cast<int64_t>(sizeof(ActBlock)));
    partials = take(partial_floats * 4);
    gathered = take(head_rows * stride * 4);
    logits = take(head_rows * head_stride * 4);
    ropes = take(c.n_batch * rope_floats * 4);
    const int64_t own_rows = kOwnRows * stage.pool().size();
    for (size_t r = 0; r < needs.n_registers; ++r) own_registers[r] = take(own_rows * stride * 4);
    own_row_temp = take(own_rows * row_floats * 4);
    own_acts = take(own_rows * acts_per_row * static_cast<int64_t>(sizeof(ActBlock)));
    own_pairs = take(own_rows * pairs_per_row * static_cast<int64_t>(sizeof(ActBlock)));
  }

 private:
  size_t take(int64_t nbytes) {
    const size_t at = total;
    total += (static_cast<size_t>(nbytes) + 63) / 64 * 64;
    return at;
  }
};

Context::Context(std::shared_ptr<const Stage> stage, const ContextConfig& config)
    : stage_(std::move(stage)),
      config_([&] {
        const auto check = [](const char* name, int64_t value, int64_t most) {
          if (value < 1 || value > most)
            throw ShapeError(std::string(name) + ": expected 1 to " + std::to_string(most) +
                             ", found " + std::to_string(value));
        };
        check("n_ctx", config.n_ctx, int64_t{1} << 30);
        check("n_seq_max", config.n_seq_max, kMaxSequences);
        check("n_batch", config.n_batch, kMaxBatch);
        return config;
      }()),
      runs_layer_(stage_->layers().size(), config_.layers.empty()),
      kv_(kv_config(*stage_, config_), stage_->kernels()),
      scratch_(Layout(*stage_, config_).total, "scratch") {
  for (const int64_t layer : config_.layers) {
    if (layer < 0 || layer >= std::ssize(runs_layer_))
      throw ShapeError("layer " + std::to_string(layer) + ": expected 0 to " +
                       std::to_string(std::ssize(runs_layer_) - 1));
    runs_layer_[static_cast<size_t>(layer)] = 1;
  }
}

Context::Memory Context::memory(const Stage& stage, const ContextConfig& config) {
  return {KvCache::nbytes(kv_config(stage, config)), Layout(stage, config).total};
}

int64_t Context::end_layer(const Input& input) const {
  return input.end_layer == kLastLayer ? std::ssize(stage_->layers()) : input.end_layer;
}

void Context::check(const Input& input, int64_t n) const {
  const int64_t n_vocab = stage_->spec().n_vocab, n_layers = std::ssize(stage_->layers());
  if (n < 1 || n > config_.n_batch)
    throw ShapeError("rows: expected 1 to n_batch = " + std::to_string(config_.n_batch) +
                     ", found " + std::to_string(n));
  if (input.first_layer < 0 || input.first_layer > end_layer(input) || end_layer(input) > n_layers)
    throw ShapeError("layers: expected a range within 0 to " + std::to_string(n_layers) +
                     ", found " + std::to_string(input.first_layer) + " to " +
                     std::to_string(end_layer(input)));
  if (input.rows.empty() && input.first_layer == 0)
    throw ShapeError("rows: expected some, for those that are pending have run the first layer");
  if (stage_->first() && input.first_layer == 0) {
    if (static_cast<int64_t>(input.tokens.size()) != n)
      throw ShapeError("tokens: expected one per row, found " +
                       std::to_string(input.tokens.size()) + " for " + std::to_string(n) + " rows");
    for (const int32_t t : input.tokens)
      if (t < 0 || t >= n_vocab)
        throw ShapeError("token " + std::to_string(t) + ": expected 0 to " +
                         std::to_string(n_vocab - 1));
  } else if (static_cast<int64_t>(input.hidden.size()) != n * stage_->spec().n_embd) {
    throw ShapeError("hidden: expected " + std::to_string(n) + " x " +
                     std::to_string(stage_->spec().n_embd) + " floats, found " +
                     std::to_string(input.hidden.size()));
  }
  for (const KvRow& row : input.rows)
    if (row.position >= stage_->n_positions())
      throw ShapeError("position " + std::to_string(row.position) + ": this model has learned " +
                       std::to_string(stage_->n_positions()) + " positions, from 0 on");
  if (!input.wanted.empty() && (!stage_->last() || end_layer(input) < n_layers))
    throw ShapeError("logits: this stage has no head, or ends before; ask the last one");
  for (size_t i = 0; i < input.wanted.size(); ++i)
    if (input.wanted[i] < (i ? input.wanted[i - 1] + 1 : 0) || input.wanted[i] >= n)
      throw ShapeError("wanted rows: expected ascending numbers below " + std::to_string(n));
}

void Context::run(const Input& input, const Consume& consume, const std::function<bool()>& poll) {
  const Layout at(*stage_, config_);
  const bool resumed = input.rows.empty();
  // A copy, for the pending rows are the cache's.
  const std::vector<KvRow> again(kv_.pending().begin(), kv_.pending().end());
  const std::span<const KvRow> rows = resumed ? std::span(again) : input.rows;
  const int64_t n = static_cast<int64_t>(rows.size()), first_row = resumed ? 0 : std::ssize(again);
  const bool tree = resumed || !input.parents.empty();
  const int64_t n_vocab = stage_->spec().n_vocab;
  try {
    check(input, n);
    if (!resumed && tree)
      kv_.grow(rows, input.parents);
    else if (!resumed)
      kv_.begin(rows);
  } catch (...) {
    abort();
    throw;
  }
  cancel_.store(false, std::memory_order_relaxed);
  last_poll_ns_ = now_ns();
  poll_ = &poll;
  stop_[0] = stop_[1] = false;
  uint8_t* base = scratch_.data();
  const auto floats = [&](size_t offset) { return reinterpret_cast<float*>(base + offset); };
  std::vector<uint8_t> interleaved;
  for (const RopeSpec& r : stage_->spec().ropes) interleaved.push_back(r.interleaved);
  std::exception_ptr failure;
  std::mutex failure_lock;
  const Consume guarded = [&](int64_t i, std::span<const float> logits) {
    try {
      consume(i, logits);
    } catch (...) {
      std::lock_guard lock(failure_lock);
      if (!failure) failure = std::current_exception();
    }
  };
  try {
    stage_->pool().run([&](Team& team) {
      const int64_t own = kOwnRows * team.rank();
      const bool own_rows = n <= kOwnRows;
      std::array<float*, kRegisters> shared{}, own_registers{};
      for (size_t r = 0; r < stage_->needs().n_registers; ++r) {
        shared[r] = floats(at.registers[r]);
        own_registers[r] = floats(at.own_registers[r]) + own * at.stride;
      }
      // copy_hidden() finds x where rank 0 leaves it.
      if (team.rank() == 0) own_registers[0] = shared[0];
      float* own_row_temp = floats(at.own_row_temp) + own * at.row_floats;
      ActBlock* own_acts = reinterpret_cast<ActBlock*>(base + at.own_acts) + own * at.acts_per_row;
      ActBlock* pairs =
          own_rows ? reinterpret_cast<ActBlock*>(base + at.own_pairs) + own * 2 * at.acts_per_row
                   : reinterpret_cast<ActBlock*>(base + at.pairs);
      Step step{.kernels = stage_->kernels(),
                .regime = input.regime,
                .copy = team.copy(),
                .n_rows = n,
                .first_row = first_row,
                .stride = at.stride,
                .tokens = input.tokens,
                .rows = rows,
                .own_rows = own_rows,
                .registers = shared,
                .shared = shared,
                .own = own_registers,
                .ropes = {},
                .rope_pairs = {},
                .rope_interleaved = interleaved,
                .kv = &kv_,
                .temp = floats(at.temp),
                .row_temp = own_rows ? own_row_temp : floats(at.row_temp),
                .acts = own_rows ? own_acts : reinterpret_cast<ActBlock*>(base + at.acts),
                .pairs = at.has_pairs ? pairs : nullptr,
                .partials = floats(at.partials),
                .partial_capacity = at.partial_floats,
                .input_squares = input_squares_.get()};
      size_t rope_at = at.ropes;
      for (const RopeSpec& r : stage_->spec().ropes) {
        step.ropes.push_back(floats(rope_at));
        step.rope_pairs.push_back(static_cast<int64_t>(r.pairs()));
        rope_at += static_cast<size_t>(config_.n_batch) * 2 * r.pairs() * sizeof(float);
      }
      fill_ropes(step, team, rows);
      forward(step, team, input);
      if (stop_[0] || stop_[1]) return;
      for (int64_t i = 0; i < static_cast<int64_t>(input.wanted.size()); i += at.head_rows) {
        const auto rows = input.wanted.subspan(
            static_cast<size_t>(i), std::min(static_cast<size_t>(at.head_rows),
                                             input.wanted.size() - static_cast<size_t>(i)));
        stage_->logits(step, team, rows, floats(at.gathered), floats(at.logits), at.head_stride);
        team.for_each(static_cast<int64_t>(rows.size()), 1, [&](int64_t begin, int64_t end) {
          for (int64_t j = begin; j < end; ++j)
            guarded(i + j, {floats(at.logits) + j * at.head_stride, static_cast<size_t>(n_vocab)});
        });
      }
    });
    if (stop_[0] || stop_[1]) throw CancelledError("stopped");
    if (failure) std::rethrow_exception(failure);
  } catch (...) {
    abort();
    throw;
  }
  if (!tree) kv_.commit();
  last_rows_ = n;
}

void Context::observe(std::shared_ptr<InputSquares> squares) {
  if (squares && &squares->stage() != stage_.get())
    throw ShapeError("input squares: they are of another model; make them of this one's stage");
  if (squares && squares->with_moments())
    for (const KvGroup& group : kv_.groups())
      if (group.used > 0)
        throw ShapeError("second moments of inputs: expected a context without cells, found " +
                         std::to_string(group.used) +
                         " of whose inputs nothing is known; clear it");
  if (squares == input_squares_) return;
  observing_ = squares ? squares->take() : nullptr;
  input_squares_ = std::move(squares);
}

void Context::abort() {
  if (!kv_.pending().empty()) kv_.abort();
  last_rows_ = 0;
}

void Context::fill_ropes(Step& step, Team& team, std::span<const KvRow> rows) {
  for (size_t i = 0; i < step.ropes.size(); ++i) {
    const RopeSpec& rope = stage_->spec().ropes[i];
    const size_t pairs = rope.pairs();
    const std::vector<double>& inv_freq = rope.inv_freq_at(config_.n_ctx);
    const double magnitude = rope.magnitude_at(config_.n_ctx);
    float* table = const_cast<float*>(step.ropes[i]);
    team.for_each(step.n_rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* row = table + static_cast<size_t>(r) * 2 * pairs;
        for (size_t p = 0; p < pairs; ++p) {
          const double angle = rows[static_cast<size_t>(r)].position * inv_freq[p];
          row[p] = static_cast<float>(std::cos(angle) * magnitude);
          row[pairs + p] = static_cast<float>(std::sin(angle) * magnitude);
        }
      }
    });
  }
}

void Context::forward(Step& step, Team& team, const Input& input) {
  if (stage_->first() && input.first_layer == 0) {
    stage_->embed(step, team);
  } else {
    const int64_t n_embd = stage_->spec().n_embd;
    float* x = step.row_output(0);
    each_row(step, team, step.n_rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        std::memcpy(x + r * step.stride, input.hidden.data() + r * n_embd,
                    static_cast<size_t>(n_embd) * sizeof(float));
    });
  }
  // The decision to stop after a layer is taken by rank 0 while the layer runs and read by all at
  // the start of the next one: the barriers of the layer lie between, and two flags keep a slow
  // reader from meeting the next decision.
  size_t n_run = 0;
  for (int64_t i = input.first_layer; i < end_layer(input); ++i) {
    if (!runs_layer_[static_cast<size_t>(i)]) continue;
    if (stop_[n_run & 1]) return;
    if (team.rank() == 0) stop_[(n_run + 1) & 1] = should_stop();
    for (const auto& block : stage_->layers()[static_cast<size_t>(i)]) block->forward(step, team);
    ++n_run;
  }
}

bool Context::should_stop() {
  if (cancel_.load(std::memory_order_relaxed)) return true;
  const int64_t now = now_ns();
  if (now - last_poll_ns_ < kPollNs) return false;
  last_poll_ns_ = now;
  return *poll_ && (*poll_)();
}

const float* Context::hidden_of(int64_t row) const {
  const Layout at(*stage_, config_);
  return reinterpret_cast<const float*>(scratch_.data() + at.registers[0]) + row * at.stride;
}

void Context::copy_hidden(float* out) const {
  const int64_t n_embd = stage_->spec().n_embd;
  for (int64_t r = 0; r < last_rows_; ++r)
    std::memcpy(out + r * n_embd, hidden_of(r), static_cast<size_t>(n_embd) * sizeof(float));
}

void Context::copy_normed(int64_t row, float* out) const {
  if (row < 0 || row >= last_rows_)
    throw ShapeError("hidden: row " + std::to_string(row) + ": the last run had " +
                     std::to_string(last_rows_));
  stage_->final_norm(hidden_of(row), out);
}

}  // namespace pyflow
