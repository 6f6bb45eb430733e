#include "model/stage.h"

#include <algorithm>
#include <array>

#include "model/adapters/adapter.h"
#include "model/adapters/low_rank.h"
#include "model/blocks/linear.h"
#include "model/group/deciding.h"
#include "model/group/group.h"
#include "model/group/parallel.h"

namespace pyflow {

Stage::Stage(StageSpec spec, TensorSource source, std::shared_ptr<ThreadPool> pool,
             const KernelTable& kernels, std::optional<DType> pack_as, bool load,
             const std::function<void()>& poll, Offload offload)
    : spec_(std::move(spec)),
      kernels_(kernels),
      pool_(std::move(pool)),
      weights_(std::move(source), pack_as, kernels),
      loaded_(load),
      offload_(std::move(offload)) {
  const int64_t n_embd = spec_.n_embd;
  if (n_embd < 1 || (spec_.n_vocab < 1 && (spec_.embedding || spec_.head)))
    throw ShapeError("model: embedding of " + std::to_string(spec_.n_vocab) + " x " +
                     std::to_string(n_embd) + " is empty");
  check_member();
  vocab_ = Shares({spec_.n_vocab, kVocabUnit}, spec_.member);
  if (spec_.embedding) {
    embedding_ =
        &weights_.rows_of(spec_.embedding->tensor("weight"), spec_.n_vocab, n_embd, vocab_.own);
    facts_.occasional.insert(embedding_);
    embedding_scale_ = spec_.embedding->number("scale");
  }
  for (const RopeSpec& rope : spec_.ropes)
    if (!rope.long_inv_freq.empty() && rope.long_inv_freq.size() != rope.pairs())
      throw ShapeError("rope: expected as many frequencies for long contexts as for others, " +
                       std::to_string(rope.pairs()) + ", found " +
                       std::to_string(rope.long_inv_freq.size()));
  BlockContext context{spec_, weights_, facts_, embedding_ != nullptr || spec_.embedded};
  for (size_t i = 0; i < spec_.layers.size(); ++i) {
    context.layer = static_cast<int64_t>(i);
    layers_.emplace_back();
    for (const BlockSpec& block : spec_.layers[i])
      layers_.back().push_back(
          placed(block, home_of(i, block.kind), layers_.back().empty(), context));
    if (!spec_.member.alone()) join_branches(spec_.layers[i], layers_.back());
  }
  if (spec_.head) {
    const BlockSpec& head = *spec_.head;
    if (head.text("norm_type") != "none")
      head_norm_ = RowNorm(weights_, head.text("norm_type"), head.number("eps"),
                           head.tensor_or_none("norm"), head.tensor_or_none("norm_bias"), n_embd);
    else if (offload_.head != kHost)
      throw UnsupportedError("gpu: a head without a norm runs on the CPU only; use --gpu-layers 0");
    weights_.set_home(offload_.head);
    head_ = &weights_.rows_of(head.tensor("weight"), spec_.n_vocab, n_embd, vocab_.own);
    head_bias_ = weights_.vector_or_null(head.tensor_or_none("bias"), spec_.n_vocab);
    head_scale_ = head.number("scale");
    head_softcap_ = head.number("softcap");
    facts_.occasional.erase(head_);
    needs_.at_least({.act_blocks_per_row = act_blocks(n_embd), .panel_cols = n_embd});
  }
  if (offloads() && (facts_.host_only || !facts_.source_layers.empty()))
    throw UnsupportedError(
        "gpu: attention to a source, with biases by distance, a temperature, norms of values or "
        "cells of another layer runs on the CPU only; use --gpu-layers 0");
  for (const auto& [name, layers] : spec_.chains)
    for (const BlockSpec& layer : layers)
      needs_.at_least(chains_[name].emplace_back(layer, weights_).needs());
  if (load)
    pack(poll);
  else
    weights_.release_source();
}

void Stage::check_member() const {
  const auto& [number, of, speeds] = spec_.member;
  if (of < 1 || number < 0 || number >= of)
    throw ShapeError("stage: expected a member below " + std::to_string(of) + ", found " +
                     std::to_string(number));
  const auto fits = [](int64_t speed) { return speed >= 1 && speed <= kMostSpeed; };
  if (!speeds.empty() && (std::ssize(speeds) != of || !std::ranges::all_of(speeds, fits)))
    throw ShapeError("stage: speeds: expected one from 1 to " + std::to_string(kMostSpeed) +
                     " for each of " + std::to_string(of) + " members, found " +
                     std::to_string(speeds.size()) + " numbers");
  if (of > 1 && offloads())
    throw UnsupportedError("gpu: layers of a device cannot be shared by members of a stage");
  for (Home group = 0; !offload_.ranks.alone() && group < n_groups(); ++group)
    if (members(group) > 1)
      throw UnsupportedError("gpu: ranks that share layers take one device each, found " +
                             std::to_string(members(group)) + " grouped by &");
  if (spec_.n_carried < 0)
    throw ShapeError("stage: expected rows that carry 0 values or more, found " +
                     std::to_string(spec_.n_carried));
  if (of > 1 && !spec_.chains.empty())
    throw UnsupportedError("a stage with heads of an encoder cannot be shared by members");
}

Home Stage::home_of(size_t layer, const std::string& kind) const {
  const Runs runs = where_runs(kind);
  if (layer >= offload_.layers.size() || runs == Runs::HostOnly) return kHost;
  return runs == Runs::Experts && !offload_.experts[layer] ? kHost : offload_.layers[layer];
}

PlacedBlock Stage::placed(const BlockSpec& spec, Home home, bool first, BlockContext& context) {
  weights_.set_home(home);
  PlacedBlock at{make_block(spec, context), home, first, 0, 0};
  context.is_first = false;
  const auto bit = [&](const char* name) {
    if (!spec.has(name)) return 0;
    const size_t index = register_index(spec.text(name));
    needs_.at_least({.n_registers = index + 1});
    return 1 << index;
  };
  at.writes = static_cast<uint8_t>(bit("output"));
  at.reads = static_cast<uint8_t>(bit("input") | (at.block->adds() ? at.writes : 0));
  if (home != kHost && facts_.kv_layers.size() > cell_homes_.size()) {
    const int64_t n = facts_.kv_layers.back().n_kv_heads;
    const int64_t of = own(home, 0).of;
    if (n < of)
      throw ShapeError("gpu: expected as many devices as a layer has kv heads, " +
                       std::to_string(n) + ", or fewer, found " + std::to_string(of) +
                       " that share layers; take fewer");
  }
  cell_homes_.resize(facts_.kv_layers.size(), home);
  return at;
}

void Stage::pack(const std::function<void()>& poll) {
  if (!offloads()) return weights_.pack(*pool_, poll, nullptr);
  const auto each = [&](Home group, const auto& work) {
    for (const auto& device : devices_[static_cast<size_t>(group)]) work(*device);
  };
  std::vector<DeviceNeeds> needs;
  for (Home group = 0; group < n_groups(); ++group) {
    needs.push_back(device_needs(group));
    const auto matrices = matrices_at(group);
    devices_.emplace_back();
    for (int64_t i = 0; i < members(group); ++i) {
      poll();
      devices_.back().push_back(std::make_unique<DeviceStage>(offload_, group, own(group, i),
                                                              matrices, needs.back(), poll));
    }
  }
  weights_.pack(*pool_, poll, [&](Home group, const PackedTensor& matrix, const uint8_t* tiles) {
    each(group, [&](DeviceStage& device) { device.weights().upload(matrix, tiles); });
  });
  for (Home group = 0; group < n_groups(); ++group)
    each(group,
         [&](DeviceStage& device) { device.weights().upload(needs[static_cast<size_t>(group)]); });
}

std::vector<NamedMatrix> Stage::matrices_at(Home home) const {
  std::vector<NamedMatrix> all;
  weights_.for_matrices_at(home, [&](const std::string& name, const PackedTensor& w) {
    all.push_back({&name, &w});
  });
  return all;
}

DeviceNeeds Stage::device_needs(Home group) const {
  DeviceNeeds needs(own(group, 0).of);
  for (const auto& layer : layers_)
    for (const PlacedBlock& at : layer)
      if (at.home == group) at.block->device_needs(needs);
  if (head_home() == group) {
    head_norm_.device_needs(needs, spec_.n_embd);
    needs.vector(head_bias_, spec_.n_vocab);
  }
  return needs;
}

ScratchNeeds Stage::needs(Home home, CacheType cells) const {
  ScratchNeeds all = needs_;
  for (const auto& layer : layers_)
    for (const PlacedBlock& at : layer)
      if (at.home == home) all.at_least(at.block->needs(cells));
  return all;
}

bool Stage::device_fine_inputs(Home group) const {
  return std::ranges::any_of(matrices_at(group), [](const NamedMatrix& w) {
    return pyflow::fine_inputs(w.packed->dtype());
  });
}

std::vector<size_t> Stage::device_weight_bytes() const {
  std::vector<size_t> all;
  for (Home group = 0; group < n_groups(); ++group) {
    const auto matrices = matrices_at(group);
    const DeviceNeeds needs = device_needs(group);
    for (int64_t i = 0; i < members(group); ++i) {
      const auto& device = offload_.groups[static_cast<size_t>(group)][static_cast<size_t>(i)];
      all.push_back(DeviceWeights::nbytes(device->info(), own(group, i), matrices, needs));
    }
  }
  return all;
}

std::vector<int64_t> Stage::rounds(Regime regime) const {
  std::vector<int64_t> all;
  for (const auto& layer : layers_)
    for (const PlacedBlock& at : layer)
      for (const int64_t nbytes : at.block->rounds(kernels_, regime)) all.push_back(nbytes);
  return all;
}

std::vector<std::span<const uint8_t>> Stage::token_weights(size_t copy) const {
  return weights_.parts(copy, facts_.occasional);
}

int64_t Stage::products_at_once(const PackedTensor* w) const {
  const auto found = facts_.side_by_side.find(w);
  return found == facts_.side_by_side.end() ? kMostProducts : found->second;
}

bool Stage::fine_inputs() const {
  bool any = false;
  for_matrices([&](const TensorRef&, const PackedTensor& w) {
    any = any || pyflow::fine_inputs(w.dtype());
  });
  return any;
}

bool Stage::has_prefill() const {
  if (offloads()) return false;
  bool any = false;
  for_matrices([&](const TensorRef&, const PackedTensor& w) {
    any = any || kernels_.prefill_matmul[static_cast<size_t>(w.dtype())];
  });
  return any;
}

void Stage::embed(Step& s, Team& team) const {
  if (s.group) return embed_own(s, team);
  float* x = s.row_output(0);
  each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r)
      embed_row(s, r, s.tokens[static_cast<size_t>(r)], x + r * s.stride);
  });
}

void Stage::embed_row(const Step& s, int64_t row, int64_t table_row, float* x) const {
  embedding_->dequantize_row(table_row, x, s.copy);
  if (const AdapterSet* set = s.adapters.empty() ? nullptr : s.adapters[static_cast<size_t>(row)])
    adapt_embedding(s, *set, table_row, x, spec_.n_embd);
  if (embedding_scale_ != 1) kernels_.scale(x, embedding_scale_, spec_.n_embd);
}

void Stage::embed_own(Step& s, Team& team) const {
  float* x = s.product_output(0);
  const auto owner = [this](int32_t token) {
    const auto has = [token](const Share& rows) { return token < rows.end; };
    return std::ranges::find_if(vocab_.all, has) - vocab_.all.begin();
  };
  team.for_each(s.n_rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int32_t token = s.tokens[static_cast<size_t>(r)];
      if (owner(token) != spec_.member.number) continue;
      embed_row(s, r, token - vocab_.own.begin, x + r * s.stride);
    }
  });
  if (team.rank() == 0) {
    std::vector<int64_t> owners;
    for (const int32_t token : s.tokens) owners.push_back(owner(token));
    s.group->gather_rows(x, s.stride, spec_.n_embd, owners);
  }
  team.barrier();
  if (!s.own_rows) return;
  // Before another thread, whose own rows these are, changes them.
  float* own = s.row_output(0);
  if (own != x) std::copy_n(x, s.n_rows * s.stride, own);
  team.barrier();
}

void Stage::final_norm(const float* x, float* out) const {
  if (head_norm_)
    head_norm_(kernels_, x, spec_.n_embd, out);
  else
    std::copy_n(x, spec_.n_embd, out);
}

void Stage::logits(Step& s, Team& team, std::span<const int32_t> rows, float* gathered,
                   float* logits, int64_t stride) const {
  const int64_t n = static_cast<int64_t>(rows.size());
  if (s.own_rows) gathered = s.own[1];
  each_row(s, team, n, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      final_norm(s.registers[0] + rows[static_cast<size_t>(i)] * s.stride, gathered + i * s.stride);
  });
  const int64_t first = vocab_.own.begin;
  const auto finish = [&](int64_t row, int64_t column, int64_t columns) {
    column += first;
    float* values = logits + row * stride + column;
    if (head_bias_) kernels_.add(values, head_bias_ + column, columns);
    if (head_scale_ != 1) kernels_.scale(values, head_scale_, columns);
    if (head_softcap_ != 0) kernels_.softcap(values, head_softcap_, columns);
  };
  const auto n_prefill = std::ranges::lower_bound(rows, s.n_prefill) - rows.begin();
  std::array<const AdapterSet*, kHeadRows> adapters;
  if (!s.adapters.empty())
    std::ranges::transform(rows, adapters.begin(),
                           [&s](int32_t row) { return s.adapters[static_cast<size_t>(row)]; });
  multiply(s, team, std::array{Product{head_, logits + first, stride}},
           {gathered, s.stride, n, n_prefill,
            std::span(adapters).first(s.adapters.empty() ? 0 : rows.size())},
           std::cref(finish));
}

void Stage::gather_logits(Step& s, Team& team, const LogitRows& rows,
                          const Deciding* deciding) const {
  if (!s.group) return;
  const bool by_parts = deciding && deciding->pays(rows.n_vocab, spec_.member.of);
  if (by_parts && gather_deciding(s, team, rows, vocab_, *deciding)) return;
  gather(s, team, SharedRows{rows.rows, rows.stride, rows.n, &vocab_});
}

void Stage::record_logits(DeviceStep& s, std::span<const int32_t> rows,
                          const DeviceStep::Rows& normed, const DeviceStep::Rows& out) const {
  const auto row_of = [](const FloatRows& all, int64_t r) {
    return columns_of(all, r * all.stride);
  };
  const int64_t n = std::ssize(rows);
  const Cut vocab = Cut::tiles(spec_.n_vocab);
  s.each([&](DeviceMember& m) {
    for (int64_t i = 0, count; i < n; i += count) {  // rows that follow each other in one command
      const int32_t* row = rows.data() + i;
      for (count = 1; i + count < n && row[count] == row[0] + count; ++count) {
      }
      head_norm_.record(m, row_of(m.registers[0], row[0]), count, spec_.n_embd,
                        row_of(normed[m.number], i));
    }
    const Share own = m.rows_of(vocab);
    const FloatRows y = columns_of(out[m.number], own.begin);
    m.multiply({head_, out[m.number]}, vocab, head_bias_, normed[m.number], n);
    if (head_scale_ != 1) m.ops.scale(m.queue, y, head_scale_, n, own.size());
    if (head_softcap_ != 0) m.ops.softcap(m.queue, y, head_softcap_, n, own.size());
  });
}

}  // namespace pyflow
