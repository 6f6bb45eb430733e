// A contiguous range of layers with its weights: all of a model on one machine, a part of it on a
// rank of a cluster. Immutable once built, shared by any number of contexts.
#pragma once

#include <memory>
#include <vector>

#include "core/thread_pool.h"
#include "kernels/table.h"
#include "model/blocks/block.h"
#include "model/blocks/row_norm.h"
#include "model/device/device_stage.h"
#include "model/device/device_step.h"
#include "model/spec.h"
#include "model/texts/dense.h"
#include "model/weights.h"

namespace pyflow {

struct Deciding;
struct LogitRows;

// A block in its place.
struct PlacedBlock {
  std::unique_ptr<Block> block;
  Home home;
  bool first;             // of its layer
  uint8_t reads, writes;  // registers, as bits
};

class Stage {
 public:
  // Binds, checks and packs the weights, float matrices as pack_as if given; without `load` only
  // binds and checks, to plan memory. Throws ShapeError for a missing tensor or a wrong shape,
  // UnsupportedError for what this build lacks, and what `poll` throws (Weights::pack).
  Stage(StageSpec spec, TensorSource source, std::shared_ptr<ThreadPool> pool,
        const KernelTable& kernels, std::optional<DType> pack_as, bool load,
        const std::function<void()>& poll, Offload offload = {});

  const StageSpec& spec() const { return spec_; }
  const KernelTable& kernels() const { return kernels_; }
  ThreadPool& pool() const { return *pool_; }
  // Of a member: bytes that each round of all layers brings together for a row of a regime.
  std::vector<int64_t> rounds(Regime regime) const;
  const std::set<std::string>& used_tensors() const { return weights_.used(); }
  size_t weight_bytes() const { return weights_.nbytes(pool_->placement().n_copies()); }
  // Weights read per decoded token: every matrix except lookup tables (unless tied to the head);
  // for MoE only top_k experts are read.
  std::vector<std::span<const uint8_t>> token_weights(size_t copy = 0) const;
  // f(ref, matrix) for each matrix; a cut of a tensor has a ref of its own.
  template <class F>
  void for_matrices(F&& f) const {
    weights_.for_matrices(f);
  }
  // Matrices W_v whose inputs attention shows to observers.
  const std::set<const PackedTensor*>& value_weights() const { return facts_.values; }
  // Whether an adapter can be beside it.
  bool is_adaptable(const PackedTensor& w) const { return !facts_.unadapted.contains(&w); }
  // Products of a row that are computed side by side with that of a matrix.
  int64_t products_at_once(const PackedTensor* w) const;
  const std::vector<LayerKv>& kv_layers() const { return facts_.kv_layers; }
  // Layers whose attention reads the cells of others, and which.
  const std::map<int64_t, int64_t>& cell_readers() const { return facts_.cell_readers; }
  // Of blocks that see a source.
  const std::vector<LayerKv>& source_layers() const { return facts_.source_layers; }
  // The rope of that layer's keys, or none.
  const std::optional<KeyRope>& kv_rope(size_t layer) const { return facts_.kv_ropes[layer]; }
  // Whether cells may move to other positions: only if scores depend on distances alone.
  bool shifts() const {
    return facts_.relative && !facts_.absolute && n_positions() > kv::kMaxPositions;
  }
  int64_t n_positions() const { return facts_.n_positions; }  // a token's position is below
  int64_t n_types() const { return facts_.n_types; }          // of tokens
  // Layers for readouts of encoders, by name.
  const std::map<std::string, std::vector<Dense>, std::less<>>& chains() const { return chains_; }
  // Of the blocks of the host; of those of a home.
  ScratchNeeds needs(CacheType cells) const { return needs(kHost, cells); }
  ScratchNeeds needs(Home home, CacheType cells) const;
  bool fine_inputs() const;  // whether any matrix has them
  // Whether any matrix has a prefill_matmul. None is used beside a device, which has no such thing:
  // a prompt's bits must not depend on where a layer runs.
  bool has_prefill() const;

  bool first() const { return embedding_ != nullptr; }
  bool last() const { return head_ != nullptr; }

  // x = rows of the embedding matrix. Called by every thread.
  void embed(Step&, Team&) const;
  const std::vector<std::vector<PlacedBlock>>& layers() const { return layers_; }
  // The head's input for a row of x, n_embd floats: x itself if there is no norm.
  void final_norm(const float* x, float* out) const;
  // logits[i] for the listed rows of x: n_vocab floats each, `stride` apart; of a member own columns.
  // `gathered` holds rows.size() x step.stride floats, for shared rows. Called by every thread.
  void logits(Step&, Team&, std::span<const int32_t> rows, float* gathered, float* logits,
              int64_t stride) const;
  // Of a member: brings together all logits of these rows, or what can decide (group/deciding.h).
  void gather_logits(Step&, Team&, const LogitRows& rows, const Deciding* deciding) const;

  // What speculators share with their model: tables of n_vocab rows, null where the stage has none;
  // of a member its rows.
  // A head may be on devices.
  struct Head {
    const PackedTensor* weight;
    const float* bias;  // null: none
    float scale, softcap;
  };
  Head head() const { return {head_, head_bias_, head_scale_, head_softcap_}; }
  const PackedTensor* embedding() const { return embedding_; }

  bool offloads() const { return !offload_.groups.empty(); }
  // Groups of devices, and the devices of one.
  Home n_groups() const { return static_cast<Home>(offload_.groups.size()); }
  int64_t members(Home group) const {
    return std::ssize(offload_.groups[static_cast<size_t>(group)]);
  }
  // What device i of a group has of its matrices, which ranks may share.
  Membership own(Home group, int64_t i) const {
    return offload_.ranks.alone() ? Membership{i, members(group)} : offload_.ranks;
  }
  // Which of the ranks it is that share it, by rows or on devices.
  const Membership& rank() const { return offloads() ? offload_.ranks : spec_.member; }
  bool is_loaded() const { return loaded_; }
  // Of a stage that is loaded.
  const std::vector<std::unique_ptr<DeviceStage>>& devices(Home group) const {
    return devices_[static_cast<size_t>(group)];
  }
  Home head_home() const { return head_ ? offload_.head : kHost; }
  // By layer that caches: where its cells are.
  const std::vector<Home>& cell_homes() const { return cell_homes_; }
  bool device_fine_inputs(Home group) const;
  // By device, group after group.
  std::vector<size_t> device_weight_bytes() const;
  // The columns of logits that each device of the head's group has; normed and out are rows of
  // n_embd and n_vocab.
  void record_logits(DeviceStep&, std::span<const int32_t> rows, const DeviceStep::Rows& normed,
                     const DeviceStep::Rows& out) const;

 private:
  void check_member() const;
  // x = rows of the embedding matrix, of which members have some each.
  void embed_own(Step&, Team&) const;
  // The embedding of a row's token, which is a row of this stage's part of the matrix.
  void embed_row(const Step&, int64_t row, int64_t table_row, float* x) const;
  Home home_of(size_t layer, const std::string& kind) const;
  PlacedBlock placed(const BlockSpec& spec, Home home, bool first, BlockContext& context);
  void pack(const std::function<void()>& poll);
  std::vector<NamedMatrix> matrices_at(Home home) const;
  // What the blocks of a group say.
  DeviceNeeds device_needs(Home group) const;

  StageSpec spec_;
  const KernelTable& kernels_;
  std::shared_ptr<ThreadPool> pool_;
  Weights weights_;
  BlockFacts facts_;
  std::vector<std::vector<PlacedBlock>> layers_;
  std::map<std::string, std::vector<Dense>, std::less<>> chains_;
  bool loaded_;
  Offload offload_;
  std::vector<std::vector<std::unique_ptr<DeviceStage>>> devices_;  // by group
  std::vector<Home> cell_homes_;
  ScratchNeeds needs_;

  Shares vocab_;  // rows of embedding and head
  const PackedTensor* embedding_ = nullptr;
  float embedding_scale_ = 1;
  const PackedTensor* head_ = nullptr;
  RowNorm head_norm_;  // or none
  const float* head_bias_ = nullptr;
  float head_scale_ = 1, head_softcap_ = 0;
};

}  // namespace pyflow
