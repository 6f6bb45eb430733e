#include "model/context.h"

#include <time.h>

#include <algorithm>
#include <cstring>
#include <exception>

#include "core/errors.h"
#include "model/group/deciding.h"

namespace pyflow {
namespace {

constexpr int64_t kPollNs = 50'000'000;

int64_t now_ns() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1'000'000'000 + t.tv_nsec;
}

// lengths: of each sequence; null for a plan, which turns nothing.
// devices: by group, make the cells of its layers.
KvConfig kv_config(const Stage& stage, const ContextConfig& c,
                   const std::vector<int64_t>* lengths = nullptr,
                   std::span<const std::unique_ptr<DeviceRun>> devices = {}) {
  const auto rotate = [&stage, lengths](size_t layer, int seq, float* k, int64_t stride,
                                        int32_t delta) {
    const std::optional<KeyRope>& at = stage.kv_rope(layer);
    if (!at) return;  // the keys do not depend on positions
    const RopeSpec& rope = stage.spec().ropes[at->rope];
    std::vector<float> cos_sin(2 * rope.pairs());
    rope.angles(delta, (*lengths)[static_cast<size_t>(seq)], 1.0, cos_sin.data());
    for (int64_t h = 0; h < stage.kv_layers()[layer].n_kv_heads; ++h)
      stage.kernels().rope(k + h * stride + at->first, cos_sin.data(),
                           static_cast<int64_t>(rope.pairs()), rope.interleaved);
  };
  const auto place = [&stage](const Buffer& cells) {
    if (stage.pool().placement().mode() != Numa::Off) stage.pool().placement().spread(cells);
  };
  KvConfig config = {stage.kv_layers(), c.cache_type, c.n_ctx, c.n_seq_max,
                     c.n_batch,         rotate,       place};
  if (!stage.shifts()) config.rotate = nullptr;
  for (const Home home : stage.cell_homes()) config.remote.push_back(home != kHost);
  config.make_remote = [&stage, devices, type = c.cache_type](size_t layer, int64_t n_cells) {
    const auto group = static_cast<size_t>(stage.cell_homes()[layer]);
    return devices[group]->make_cells(layer, stage.kv_layers()[layer], type, n_cells);
  };
  return config;
}

KvConfig source_config(const Stage& stage, const ContextConfig& c) {
  const auto place = [&stage](const Buffer& cells) {
    if (stage.pool().placement().mode() != Numa::Off) stage.pool().placement().spread(cells);
  };
  KvConfig config;
  config.layers = stage.source_layers();
  config.type = c.cache_type;
  config.n_ctx = c.n_source;
  config.n_seq_max = c.n_seq_max;
  config.n_batch = c.n_batch;
  config.place = place;
  return config;
}

DeviceRunSizes there(const ContextConfig& c) { return {c.n_batch, c.n_ctx, c.cache_type, c.link}; }

// The first error that the threads of a step throw; workers of a pool must not.
class FirstError {
 public:
  void set(std::exception_ptr error) {
    const std::lock_guard guard(lock_);
    if (!error_) error_ = std::move(error);
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex lock_;
  std::exception_ptr error_;
};

}  // namespace

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
        const int64_t number = stage_->rank().number, of = stage_->rank().of;
        if (config.link ? config.link->number() != number || config.link->size() != of : of != 1)
          throw ShapeError("context: expected a link of member " + std::to_string(number) + " of " +
                           std::to_string(of));
        if (!stage_->source_layers().empty()) check("n_source", config.n_source, int64_t{1} << 30);
        return config;
      }()),
      runs_layer_(stage_->layers().size(), config_.layers.empty()),
      devices_([&] {
        std::vector<std::unique_ptr<DeviceRun>> all;
        for (Home group = 0; group < stage_->n_groups(); ++group)
          all.push_back(std::make_unique<DeviceRun>(*stage_, group, there(config_)));
        return all;
      }()),
      kv_(kv_config(*stage_, config_, &lengths_, devices_), stage_->kernels()),
      group_(config_.link && !stage_->offloads() ? std::make_unique<Group>(config_.link) : nullptr),
      sources_(stage_->source_layers().empty()
                   ? nullptr
                   : std::make_unique<Sources>(source_config(*stage_, config_), stage_->kernels())),
      scratch_(*stage_, config_.n_batch, config_.n_ctx, config_.cache_type),
      lengths_(static_cast<size_t>(config_.n_seq_max), config_.n_ctx),
      adapters_(static_cast<size_t>(config_.n_seq_max)) {
  for (const int64_t layer : config_.layers) {
    if (layer < 0 || layer >= std::ssize(runs_layer_))
      throw ShapeError("layer " + std::to_string(layer) + ": expected 0 to " +
                       std::to_string(std::ssize(runs_layer_) - 1));
    runs_layer_[static_cast<size_t>(layer)] = 1;
  }
  for (const auto& [layer, of] : stage_->cell_readers())
    if (runs_layer_[static_cast<size_t>(layer)] && !runs_layer_[static_cast<size_t>(of)])
      throw ShapeError("layer " + std::to_string(layer) + ": expected layer " + std::to_string(of) +
                       ", whose cells it reads, among the layers too");
  for (const auto& each : devices_) each->pin(scratch_.memory(), pins_);
}

Context::Memory Context::memory(const Stage& stage, const ContextConfig& config) {
  const KvConfig kv = kv_config(stage, config);
  Memory memory{KvCache::nbytes(kv),
                ScratchLayout(stage, config.n_batch, config.n_ctx, config.cache_type).nbytes,
                {}};
  if (!stage.source_layers().empty()) memory.kv += Sources::nbytes(source_config(stage, config));
  for (Home group = 0; group < stage.n_groups(); ++group) {
    memory.scratch += DeviceRun::staging_nbytes(stage, group, there(config));
    for (const size_t n : DeviceRun::nbytes(stage, group, there(config), kv))
      memory.devices.push_back(n);
  }
  return memory;
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
  } else if (static_cast<int64_t>(input.hidden.size()) != n * stage_->spec().row_width()) {
    throw ShapeError("hidden: expected " + std::to_string(n) + " x " +
                     std::to_string(stage_->spec().row_width()) + " floats, found " +
                     std::to_string(input.hidden.size()));
  }
  if (input.n_prefill < 0 || input.n_prefill > n)
    throw ShapeError("n_prefill: expected 0 to " + std::to_string(n) + ", found " +
                     std::to_string(input.n_prefill));
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
  try {
    each([&](Context& member) { member.reserve(input); });
    if (crew_)
      compute_together(input, consume, poll);
    else
      compute(input, consume, poll);
  } catch (...) {
    abort();
    throw;
  }
  if (!input.rows.empty() && input.parents.empty())
    each([](Context& member) { member.kv_.commit(); });
}

void Context::reserve(const Input& input) {
  const bool resumed = input.rows.empty();
  const std::span<const KvRow> rows = resumed ? kv_.pending() : input.rows;
  check(input, std::ssize(rows));
  see_sources(rows);
  adapt_rows(rows);
  if (!resumed && input.parents.empty()) kv_.begin(rows);
  if (!resumed && !input.parents.empty()) kv_.grow(rows, input.parents);
  cancel_.store(false, std::memory_order_relaxed);
  if (group_) group_->begin();
}

void Context::compute(const Input& input, const Consume& consume,
                      const std::function<bool()>& poll) {
  const bool resumed = input.rows.empty();
  const std::span<const KvRow> rows = resumed ? kv_.pending() : input.rows;
  last_poll_ns_ = now_ns();
  poll_ = &poll;
  stop_[0] = stop_[1] = false;
  FirstError error;
  const Consume guarded = [&](int64_t i, std::span<const float> logits) {
    try {
      consume(i, logits);
    } catch (...) {
      error.set(std::current_exception());
    }
  };
  const StepRows of = {.n_rows = std::ssize(rows),
                       .n_prefill = stage_->offloads() ? 0 : input.n_prefill,
                       .first_row = std::ssize(kv_.pending()) - std::ssize(rows),
                       .tokens = input.tokens,
                       .rows = rows,
                       .adapters = row_adapters_};
  try {
    if (stage_->offloads())
      run_parts(of, input, guarded);
    else
      run_here(of, input, guarded);
  } catch (const CancelledError&) {  // as in all members
    throw;
  } catch (...) {  // others must not wait for this one
    if (group_) config_.link->abort();
    throw;
  }
  error.rethrow();
  last_rows_ = std::ssize(rows);
}

Step Context::step(const Team& team, const StepRows& rows) {
  Step s{rows, scratch_.step(team, rows), stage_->kernels(), team.copy(), &kv_, observer_.get(),
         {}};
  s.sources = sources_.get();
  s.group = group_.get();
  s.source_views = source_views_;
  s.low_rank = low_rank_.as<float>();
  s.low_rank_stride = low_rank_stride_;
  float* angles = s.angles;
  for (const RopeSpec& r : stage_->spec().ropes) {
    s.ropes.push_back({angles, static_cast<int64_t>(r.pairs()), r.interleaved});
    angles += config_.n_batch * 2 * static_cast<int64_t>(r.pairs());
  }
  return s;
}

void Context::declare(int seq, int64_t n_positions) {
  if (kv_.seq_pos_max(seq) >= 0)
    throw ShapeError("sequence " + std::to_string(seq) +
                     ": expected none of its positions to be taken before its length is declared");
  if (n_positions < 1)
    throw ShapeError("length: expected 1 position or more, found " + std::to_string(n_positions));
  lengths_[static_cast<size_t>(seq)] = n_positions;
}

void Context::observe(std::shared_ptr<Observer> observer) {
  if (observer == observer_) return;
  if (observer && stage_->offloads())
    throw UnsupportedError(
        "inputs of weights are seen on the CPU only; expected all layers there, "
        "found some on a device: use --gpu-layers 0");
  if (observer && group_)
    throw UnsupportedError("inputs of weights are seen by a stage of one member only");
  observing_ = observer ? observer->attach(*stage_, kv_) : nullptr;
  observer_ = std::move(observer);
}

void Context::abort() {
  each([](Context& member) {
    if (!member.kv_.pending().empty()) member.kv_.abort();
    member.last_rows_ = 0;
  });
}

void Context::fill_ropes(const Step& s, Team& team) {
  for (size_t i = 0; i < s.ropes.size(); ++i) {
    const RopeSpec& rope = stage_->spec().ropes[i];
    team.for_each(s.n_rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const KvRow& row = s.rows[static_cast<size_t>(r)];
        const int64_t length = lengths_[static_cast<size_t>(row.sequences.first())];
        rope.angles(row.position, length, rope.magnitude_at(length), s.ropes[i].row(r));
      }
    });
  }
}

void Context::start(Step& step, Team& team, const Input& input) {
  fill_ropes(step, team);
  if (stage_->first() && input.first_layer == 0) return stage_->embed(step, team);
  const StageSpec& spec = stage_->spec();
  float* x = step.row_output(0);
  each_row(step, team, step.n_rows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float* from = input.hidden.data() + r * spec.row_width();
      std::copy_n(from, spec.n_embd, x + r * step.stride);
      std::copy_n(from + spec.n_embd, spec.n_carried, step.carried + r * step.carried_stride);
    }
  });
}

// Rank 0 decides during a layer whether to stop after it; all threads read that before the next
// layer, with the layer's barriers in between. Two flags take turns, so that a slow reader never
// sees the decision after its own.
void Context::run_blocks(Step& s, Team& team, const Part& part) {
  size_t n_run = 0;
  for (const PlacedBlock* at : part.blocks) {
    if (at->first) {
      if (group_ ? group_->stopping() : stop_[n_run & 1]) return;
      if (team.rank() == 0) decide_to_stop(n_run);
      ++n_run;
    }
    at->block->forward(s, team);
  }
}

void Context::decide_to_stop(size_t n) {
  if (!group_)
    stop_[(n + 1) & 1] = should_stop() && stops_alone();
  else if (group_->leads())
    group_->ask_to_stop(should_stop());
}

void Context::run_here(const StepRows& rows, const Input& input, const Consume& consume) {
  const std::vector<Part>& all = parts(input);
  stage_->pool().run([&](Team& team) {
    Step s = step(team, rows);
    start(s, team, input);
    for (const Part& part : all) run_blocks(s, team, part);
    if (!stopped()) head(s, team, input, consume);
  });
  if (group_) group_->check();
  if (stopped()) throw CancelledError("stopped");
}

void Context::head(Step& s, Team& team, const Input& input, const Consume& consume) {
  const std::span<const int32_t> wanted = input.wanted;
  const auto n_vocab = static_cast<size_t>(stage_->spec().n_vocab);
  const auto at_once = static_cast<size_t>(scratch_.head_rows());
  for (size_t i = 0; i < wanted.size(); i += at_once) {
    const auto rows = wanted.subspan(i, std::min(at_once, wanted.size() - i));
    stage_->logits(s, team, rows, scratch_.gathered(), scratch_.logits(), scratch_.head_stride());
    stage_->gather_logits(s, team,
                          {scratch_.logits(), scratch_.head_stride(), std::ssize(rows),
                           stage_->spec().n_vocab, static_cast<int64_t>(i)},
                          input.deciding);
    if (group_ && group_->failed()) return;
    team.for_each(std::ssize(rows), 1, [&](int64_t begin, int64_t end) {
      for (int64_t j = begin; j < end; ++j)
        consume(static_cast<int64_t>(i) + j,
                {scratch_.logits() + j * scratch_.head_stride(), n_vocab});
    });
  }
}

bool Context::should_stop() {
  if (cancel_.load(std::memory_order_relaxed)) return true;
  const int64_t now = now_ns();
  if (now - last_poll_ns_ < kPollNs) return false;
  last_poll_ns_ = now;
  return *poll_ && (*poll_)();
}

void Context::copy_hidden(float* out) const {
  const StageSpec& spec = stage_->spec();
  for (int64_t r = 0; r < last_rows_; ++r) {
    out = std::copy_n(scratch_.hidden(r), spec.n_embd, out);
    out = std::copy_n(scratch_.carried(r), spec.n_carried, out);
  }
}

void Context::copy_normed(int64_t row, float* out) const {
  if (row < 0 || row >= last_rows_)
    throw ShapeError("hidden: row " + std::to_string(row) + ": the last run had " +
                     std::to_string(last_rows_));
  stage_->final_norm(scratch_.hidden(row), out);
}

}  // namespace pyflow
