// One user's state over a shared stage: KV cache and scratch. A context serves one call at a time;
// several contexts may be used from several threads.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/buffer.h"
#include "kv/kv_cache.h"
#include "model/stage.h"

namespace pyflow {

inline constexpr int64_t kMaxBatch = 1 << 16;

struct ContextConfig {
  int64_t n_ctx = 0;  // cells of the unwindowed layers
  int n_seq_max = 1;
  int64_t n_batch = 512;  // rows of one step at most, up to kMaxBatch
  CacheType cache_type = CacheType::F16;
  std::vector<int64_t> layers;  // those that run; none: all
};

class Context {
 public:
  // Throws ResourceError when the memory is refused, ShapeError for sizes out of range.
  Context(std::shared_ptr<const Stage> stage, const ContextConfig& config);

  struct Memory {
    size_t kv = 0;
    size_t scratch = 0;
  };
  // What a context of this configuration allocates.
  static Memory memory(const Stage& stage, const ContextConfig& config);

  static constexpr int64_t kLastLayer = -1;
  // A step's rows: token ids where it begins with the embedding, hidden states (n x n_embd) where
  // it begins at a layer.
  struct Input {
    std::span<const int32_t> tokens;
    std::span<const float> hidden;
    // None: the rows that are pending, whose further layers are to run.
    std::span<const KvRow> rows;
    std::span<const int32_t> parents;  // of a tree, see KvCache::grow; else none
    std::span<const int32_t> wanted;   // ascending row indices whose logits are consumed
    Regime regime = Regime::Decode;
    int64_t first_layer = 0, end_layer = kLastLayer;
  };
  // Receives the logits of wanted[i]; called by several threads at once, for different i. May
  // throw.
  using Consume = std::function<void(int64_t i, std::span<const float> logits)>;

  // Runs the rows and commits their cells, but for those of a tree: they stay pending. `poll` is
  // called between layers, at most every 50 ms, by the calling thread; true asks to stop. Throws
  // CancelledError when stopped; whatever it throws, the cache is as it was before, and no row is
  // pending.
  void run(const Input& input, const Consume& consume, const std::function<bool()>& poll);

  // Frees the rows that are pending, if there are any.
  void abort();

  // Hidden states of the last run, n_embd floats per row; for the next stage or layer.
  void copy_hidden(float* out) const;
  // The same of one row, as the head takes it.
  void copy_normed(int64_t row, float* out) const;

  // Stops the run in progress, if any; safe from any thread and from signal handlers.
  void interrupt() noexcept { cancel_.store(true, std::memory_order_relaxed); }

  // From now on steps add the inputs of their matrices to `squares`; null: no more. Throws
  // ShapeError for those of another stage.
  void observe(std::shared_ptr<InputSquares> squares);

  KvCache& kv() { return kv_; }
  const Stage& stage() const { return *stage_; }
  const ContextConfig& config() const { return config_; }
  std::mutex& busy() { return busy_; }

 private:
  struct Layout;
  void check(const Input& input, int64_t n) const;
  int64_t end_layer(const Input& input) const;
  const float* hidden_of(int64_t row) const;
  void forward(Step&, Team&, const Input&);
  void fill_ropes(Step&, Team&, std::span<const KvRow> rows);
  bool should_stop();

  std::shared_ptr<const Stage> stage_;
  ContextConfig config_;
  std::vector<uint8_t> runs_layer_;
  KvCache kv_;
  Buffer scratch_;
  int64_t last_rows_ = 0;
  std::shared_ptr<InputSquares> input_squares_;
  std::shared_ptr<const void> observing_;  // that these are taken
  std::atomic<bool> cancel_{false};
  bool stop_[2] = {false, false};
  const std::function<bool()>* poll_ = nullptr;
  int64_t last_poll_ns_ = 0;
  std::mutex busy_;
};

}  // namespace pyflow
