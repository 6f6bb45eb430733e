// A contiguous range of layers with its weights: all of a model on one machine, a part of it on a
// rank of a cluster. Immutable once built, shared by any number of contexts.
#pragma once

#include <memory>
#include <vector>

#include "core/thread_pool.h"
#include "kernels/table.h"
#include "model/block.h"
#include "model/spec.h"
#include "model/weights.h"

namespace pyflow {

class Stage {
 public:
  // Binds, checks and packs the weights; without `load` only binds and checks, to plan memory.
  // Throws ShapeError for a missing tensor or a wrong shape, and what `poll` does: see
  // Weights::pack.
  Stage(StageSpec spec, TensorSource source, std::shared_ptr<ThreadPool> pool,
        const KernelTable& kernels, bool load, const std::function<void()>& poll);

  const StageSpec& spec() const { return spec_; }
  const KernelTable& kernels() const { return kernels_; }
  ThreadPool& pool() const { return *pool_; }
  const std::set<std::string>& used_tensors() const { return weights_.used(); }
  size_t weight_bytes() const { return weights_.nbytes(pool_->placement().n_copies()); }
  // What every token needs: all weights, but no embedding that is not also the head, of which a
  // token takes one row.
  std::vector<std::span<const uint8_t>> token_weights(size_t copy = 0) const;
  const std::vector<LayerKv>& kv_layers() const { return kv_layers_; }
  // The rope that layer's keys carry.
  const RopeSpec& kv_rope(size_t layer) const { return spec_.ropes[kv_ropes_[layer]]; }
  const ScratchNeeds& needs() const { return needs_; }

  bool first() const { return embedding_ != nullptr; }
  bool last() const { return head_ != nullptr; }

  // x = rows of the embedding matrix. Called by every thread.
  void embed(Step&, Team&) const;
  const std::vector<std::vector<std::unique_ptr<Block>>>& layers() const { return layers_; }
  // A row of x as the head takes it, n_embd floats.
  void final_norm(const float* x, float* out) const;
  // logits[i] for the rows of x that are listed; n_vocab floats each, `stride` apart. `gathered`
  // holds rows.size() x step.stride floats, for shared rows. Called by every thread.
  void logits(Step&, Team&, std::span<const int32_t> rows, float* gathered, float* logits,
              int64_t stride) const;

 private:
  StageSpec spec_;
  const KernelTable& kernels_;
  std::shared_ptr<ThreadPool> pool_;
  Weights weights_;
  std::vector<LayerKv> kv_layers_;
  std::vector<size_t> kv_ropes_;
  std::vector<std::vector<std::unique_ptr<Block>>> layers_;
  ScratchNeeds needs_;

  const PackedTensor* embedding_ = nullptr;
  float embedding_scale_ = 1;
  const PackedTensor* head_ = nullptr;
  const float* head_norm_ = nullptr;
  float head_eps_ = 0, head_scale_ = 1, head_softcap_ = 0;
};

}  // namespace pyflow
