// One user's state over a shared stage: KV cache and scratch. A context serves one call at a time;
// several contexts may be used from several threads.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "kv/kv_cache.h"
#include "kv/sources.h"
#include "model/adapters/adapter.h"
#include "model/device/device_run.h"
#include "model/group/group.h"
#include "model/observer.h"
#include "model/scratch.h"
#include "model/stage.h"

namespace pyflow {

inline constexpr int64_t kMaxBatch = 1 << 16;

struct ContextConfig {
  int64_t n_ctx = 0;  // cells of the unwindowed layers
  int n_seq_max = 1;
  int64_t n_batch = 512;  // rows of one step at most, up to kMaxBatch
  CacheType cache_type = CacheType::F16;
  std::vector<int64_t> layers;           // the only layers to run; empty: all
  int64_t n_source = 0;                  // cells of all sources; above 0 where the stage sees some
  std::shared_ptr<Link> link = nullptr;  // to the other members of a stage that several share
};

class Context {
 public:
  // Throws ResourceError when the memory is refused, ShapeError for sizes out of range.
  Context(std::shared_ptr<const Stage> stage, const ContextConfig& config);

  struct Memory {
    size_t kv = 0;
    size_t scratch = 0;
    std::vector<size_t> devices;  // cells and scratch there, by device, group after group
  };
  // What a context of this configuration allocates.
  static Memory memory(const Stage& stage, const ContextConfig& config);

  static constexpr int64_t kLastLayer = -1;
  // A step's rows: token ids where it begins with the embedding, hidden states (n x n_embd) where
  // it begins at a layer.
  struct Input {
    std::span<const int32_t> tokens;
    std::span<const float> hidden;
    // Empty: run further layers of the pending rows.
    std::span<const KvRow> rows;
    std::span<const int32_t> parents;  // of a tree, see KvCache::grow; else empty
    std::span<const int32_t> wanted;   // ascending row indices whose logits are consumed
    int64_t n_prefill = 0;             // rows, the first ones, that are of prompts
    int64_t first_layer = 0, end_layer = kLastLayer;
    const Deciding* deciding = nullptr;  // of what is wanted; null: all logits are consumed
  };
  // Receives the logits of wanted[i]; called by several threads at once, for different i. May
  // throw.
  using Consume = std::function<void(int64_t i, std::span<const float> logits)>;

  // Runs the rows and commits their cells; those of a tree stay pending. `poll` is
  // called between layers, at most every 50 ms, by the calling thread; true asks to stop. Throws
  // CancelledError when stopped; whatever it throws, the cache is as it was before, and no row is
  // pending.
  void run(const Input& input, const Consume& consume, const std::function<bool()>& poll);

  // From now on this context, of member 0, does what it does for all members of its stage: these
  // are the contexts of the others, in their order. Each computes by its own pool, all at the same
  // time. Throws ShapeError for contexts of other members or sizes.
  void lead(std::vector<std::shared_ptr<Context>> others);
  // Calls f(member) for this context, then for those that it leads. What changes cells goes through
  // here: all members have the same cells, so what one of them refuses the first one refuses.
  const std::vector<std::shared_ptr<Context>>& others() const { return others_; }
  template <class F>
  void each(F&& f) {
    f(*this);
    for (const auto& other : others_) f(*other);
  }

  // Frees the rows that are pending, if there are any.
  void abort();

  // Hidden states of the last run, n_embd floats for each of its rows; for the next stage or layer.
  int64_t n_hidden() const { return last_rows_; }
  void copy_hidden(float* out) const;
  // The same of one row, normed as the head takes it.
  void copy_normed(int64_t row, float* out) const;

  // Stops the run in progress, if any; safe from any thread and from signal handlers.
  void interrupt() noexcept { cancel_.store(true, std::memory_order_relaxed); }

  // How many positions a sequence may take, by which models of long contexts turn its positions;
  // before: n_ctx. Throws ShapeError unless the sequence is empty.
  void declare(int seq, int64_t n_positions);

  // From now on these adapters, or none, are beside the weights for a sequence. Throws ShapeError
  // unless it is empty, or for adapters of another stage; ResourceError if memory is refused.
  void adapt(int seq, std::shared_ptr<const AdapterSet> adapters);

  // Of a stage that sees sources: appends n rows of an encoder's last layer, n x n_embd, to the
  // source of a sequence. Throws ShapeError for a sequence that has begun or does not exist,
  // ResourceError if the cells run out, CancelledError when stopped; then the source is as before.
  void read_source(int seq, std::span<const float> states, const std::function<bool()>& poll);
  // Sequence `to` sees the source of `from` too; it must have none.
  void share_source(int from, int to);
  // A sequence has no source any more; what it has written stays.
  void drop_source(int seq);
  // Cells of sources that are free; 0 of a stage that sees none.
  int64_t n_free_source() const { return sources_ ? sources_->n_free() : 0; }
  void clear();

  // From now on `observer` sees the inputs of matrices; null: none does. Throws as its attach()
  // does.
  void observe(std::shared_ptr<Observer> observer);

  KvCache& kv() { return kv_; }
  const KvCache& kv() const { return kv_; }
  const Stage& stage() const { return *stage_; }
  const ContextConfig& config() const { return config_; }
  std::mutex& busy() { return busy_; }

 private:
  void check(const Input& input, int64_t n) const;
  // The parts of a run, of one member.
  void reserve(const Input& input);
  void compute(const Input& input, const Consume& consume, const std::function<bool()>& poll);
  void compute_together(const Input& input, const Consume& consume,
                        const std::function<bool()>& poll);
  Sources& sources(int seq);
  // By row, the cells of its source; ShapeError if one has none.
  void see_sources(std::span<const KvRow> rows);
  void read_rows(std::span<const float> states, int64_t n);
  void adapt_rows(std::span<const KvRow> rows);
  int64_t end_layer(const Input& input) const;
  // What a thread of the team works with, the only place that fills it.
  Step step(const Team&, const StepRows&);
  void fill_ropes(const Step&, Team&);
  // Blocks in a row that run in one place.
  struct Part {
    Home home;
    std::vector<const PlacedBlock*> blocks;
    uint8_t reads = 0, writes = 0;  // registers that come in, and that change
  };
  const std::vector<Part>& parts(const Input& input);
  // Ropes, and x from token ids or hidden states.
  void start(Step&, Team&, const Input&);
  void run_blocks(Step&, Team&, const Part&);
  // All in one region of the pool; the host's parts in regions and the device's as commands.
  void run_here(const StepRows&, const Input&, const Consume&);
  void run_parts(const StepRows&, const Input&, const Consume&);
  void device_head(std::span<const int32_t> wanted, const Consume&);
  void head(Step&, Team&, const Input&, const Consume&);
  bool should_stop();
  // After should_stop(): whether this context may stop now. Ranks whose layers are on devices stop
  // at their next gather, all of them.
  bool stops_alone();
  bool stopped() const { return group_ ? group_->stopping() : stop_[0] || stop_[1]; }
  // By rank 0 of the team, of the n-th layer of a run.
  void decide_to_stop(size_t n);

  std::shared_ptr<const Stage> stage_;
  ContextConfig config_;
  std::vector<uint8_t> runs_layer_;
  std::vector<Part> parts_;  // of the layers that ran last
  int64_t parts_begin_ = -1, parts_end_ = -1;
  std::vector<std::unique_ptr<DeviceRun>> devices_;  // by group
  KvCache kv_;
  std::unique_ptr<Group> group_;                  // null: the stage has one member
  std::vector<std::shared_ptr<Context>> others_;  // members that this one leads
  std::unique_ptr<ThreadPool> crew_;              // a thread for each, and the caller's
  std::unique_ptr<Sources> sources_;              // null: the stage sees none
  std::vector<RowView> source_views_;             // of the run's rows
  Scratch scratch_;
  DeviceRun::Pins pins_;  // of scratch_
  int64_t last_rows_ = 0;
  std::vector<int64_t> lengths_;  // positions that each sequence may take
  std::vector<std::shared_ptr<const AdapterSet>> adapters_;  // by sequence, or null
  std::vector<const AdapterSet*> row_adapters_;              // of the run's rows; empty: none
  Buffer low_rank_;                                          // A x of them
  int64_t low_rank_stride_ = 0;
  std::shared_ptr<Observer> observer_;
  std::shared_ptr<const void> observing_;  // what its attach() returned
  std::atomic<bool> cancel_{false};
  bool stop_[2] = {false, false};
  const std::function<bool()>* poll_ = nullptr;
  int64_t last_poll_ns_ = 0;
  std::mutex busy_;
};

}  // namespace pyflow
