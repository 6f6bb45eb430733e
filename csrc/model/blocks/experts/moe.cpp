// h = sum of p_e * W_down,e (act(W_gate,e h) * (W_up,e h)) over the likeliest experts e of a row,
// plus a shared expert if the model has one. Experts of gpt-oss have biases on all three, and so
// has its router.
//
// Rows are grouped by expert, so that a step reads the weights of each chosen expert once, and
// those of others never. A row adds its experts from the likeliest to the least likely, the shared
// one last, whatever other rows chose. For example, rows 0, 1, 2 choose experts {2, 0}, {2, 1}, {0,
// 2}: slots 0 and 1 are rows 0 and 2 of expert 0, slot 2 is row 1 of expert 1, slots 3 to 5 are
// rows 0, 1, 2 of expert 2; first = {0, 2, 3, 6}.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "model/blocks/activation.h"
#include "model/blocks/block.h"
#include "model/blocks/experts/moe_buffers.h"
#include "model/blocks/linear.h"
#include "model/blocks/row_norm.h"
#include "model/device/experts.h"
#include "model/group/group.h"

namespace pyflow {
namespace {

constexpr int64_t kMostExperts = 1 << 16;
constexpr int64_t kColumns = 512;  // of a row, added up by one thread at a time

class Moe final : public Block {
 public:
  Moe(const BlockSpec& spec, BlockContext& c)
      : in_(register_index(spec.text("input"))),
        out_(register_index(spec.text("output"))),
        n_embd_(c.stage.n_embd),
        n_experts_(spec.integer("n_experts")),
        top_k_(spec.integer("top_k")),
        n_ff_(spec.integer("n_ff")),
        act_(activation_named(spec.text("activation"))),
        choice_(choice_of(spec)),
        inner_({n_ff_, kInnerUnit}, c.stage.member),
        outer_(Cut::tiles(n_embd_), c.stage.member) {
    if (n_experts_ < 1 || n_experts_ > kMostExperts || top_k_ < 1 || top_k_ > n_experts_ ||
        n_ff_ < 1 || n_ff_ > std::numeric_limits<int32_t>::max())
      throw ShapeError("moe: " + std::to_string(top_k_) + " of " + std::to_string(n_experts_) +
                       " experts of " + std::to_string(n_ff_) + ": expected 1 to " +
                       std::to_string(kMostExperts) + ", and no more than there are");
    Weights& w = c.weights;
    // Routers are small, and nothing corrects their errors.
    router_ = &w.matrix(spec.tensor("router"), n_experts_, n_embd_, Weights::Loop::Own,
                        Weights::Format::AsStored);
    if (const auto ref = spec.tensor_or_none("shared_router"))
      shared_router_ =
          &w.matrix(*ref, 1, n_embd_, Weights::Loop::Continued, Weights::Format::AsStored);
    if (const auto ref = spec.tensor_or_none("router_norm")) {
      router_norm_ = RowNorm(w, "rms", spec.number("router_eps"), ref, std::nullopt, n_embd_);
      router_in_ = register_index(spec.text("router_input"));
    }
    expert_scale_ = w.vector_or_null(spec.tensor_or_none("expert_scale"), n_experts_);
    choice_.bias = w.vector_or_null(spec.tensor_or_none("choice_bias"), n_experts_);
    router_bias_ = w.vector_or_null(spec.tensor_or_none("router_bias"), n_experts_);
    const auto biases = [&](const char* name, int64_t n) {
      return spec.has(name) ? w.vector(spec.tensors(name), n_experts_ * n) : nullptr;
    };
    gate_bias_ = biases("gate_bias", n_ff_);
    up_bias_ = biases("up_bias", n_ff_);
    down_bias_ = biases("down_bias", n_embd_);
    gate_ = w.matrices(spec.tensors("gate"), n_experts_, n_ff_, n_embd_, inner_.own);
    up_ = w.matrices(spec.tensors("up"), n_experts_, n_ff_, n_embd_, inner_.own);
    down_ = w.matrices(spec.tensors("down"), n_experts_, n_embd_, n_ff_, outer_.own);
    weighs_inputs_ = spec.has("weighs_inputs") && spec.flag("weighs_inputs");
    takes_floats_ = weighs_inputs_;
    for (const auto* experts : {&gate_, &up_})
      for (const PackedTensor* e : *experts) takes_floats_ |= float_inputs(e->dtype());
    if (spec.has("shared_gate")) {
      n_ff_shared_ = spec.integer("n_ff_shared");
      shared_ = Shares({n_ff_shared_, kInnerUnit}, c.stage.member);
      const auto as = Weights::Format::Unordered;
      shared_gate_ = &w.rows_of(spec.tensor("shared_gate"), n_ff_shared_, n_embd_, shared_.own, as);
      shared_up_ = &w.rows_of(spec.tensor("shared_up"), n_ff_shared_, n_embd_, shared_.own, as);
      shared_down_ = &w.rows_of(spec.tensor("shared_down"), n_embd_, n_ff_shared_, outer_.own, as);
    }
    gathers_acts_ = !shared_down_ || takes_acts(*shared_down_, shared_);
    for (const PackedTensor* e : down_) gathers_acts_ &= takes_acts(*e, inner_);
    for (const auto* experts : {&gate_, &up_, &down_}) {
      c.facts.occasional.insert(experts->begin() + top_k_, experts->end());
      for (const PackedTensor* e : *experts) c.facts.side_by_side[e] = n_projected();
    }
    for (const PackedTensor* e : {shared_gate_, shared_up_, shared_down_})
      c.facts.side_by_side[e] = n_projected();
  }

  ScratchNeeds needs(CacheType) const override {
    const int64_t inner = top_k_ * padded(n_ff_) + padded(n_ff_shared_),
                  outer = (top_k_ + n_shared()) * padded(n_embd_);
    return {.floats_per_row = padded(n_experts_) + kTileRows + 2 * inner + outer +
                              padded(kSlotWords * top_k_ + 1),
            .row_floats_per_row = 4 * top_k_ + 1 + 3 * n_experts_ + 2 +
                                  (router_norm_ ? padded(n_embd_) : 0) +
                                  (takes_floats_ ? top_k_ * padded(n_embd_) : 0),
            .act_blocks_per_row = std::max((1 + top_k_) * act_blocks(n_embd_),
                                           top_k_ * act_blocks(n_ff_) + act_blocks(n_ff_shared_))};
  }

  void forward(Step& s, Team& team) const override {
    const MoeBuffers b(sizes(), s);
    const float* in = s.registers[in_];
    // Experts have few rows each, so prompts take the arithmetic of decoding here, in any step.
    route(s, team, b, router_rows(s, team, b));
    quantize_rows(s, team, in, s.stride, s.n_rows, n_embd_);

    each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        choose(choice_, b.logits + r * padded(n_experts_), b.keys + r * n_experts_,
               b.p + r * top_k_, b.chosen + r * top_k_);
        for (int64_t i = r * top_k_; i < (r + 1) * top_k_ && expert_scale_; ++i)
          b.p[i] *= expert_scale_[b.chosen[i]];
        b.shared_p[r] = shared_router_ ? sigmoid(b.shared_logit[r * kTileRows]) : 1.0f;
      }
    });
    if (s.own_rows || team.rank() == 0) assign_slots(choice_, s.n_rows, b.slots());
    if (!s.own_rows) team.barrier();
    if (s.n_rows > 1 || weighs_inputs_)
      each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) bring_together(s, b, in, r);
      });

    const size_t n_active = static_cast<size_t>(*b.n_active),
                 n_jobs = n_active + static_cast<size_t>(n_shared());
    const auto inner_job = [&](size_t i) -> Job {
      if (i == n_active)
        return adapted(
            s,
            {{Product{shared_gate_, b.shared_gate + shared_.own.begin, padded(n_ff_shared_)},
              Product{shared_up_, b.shared_up + shared_.own.begin, padded(n_ff_shared_)}},
             2,
             in,
             s.stride,
             s.acts,
             s.n_rows,
             nullptr},
            s.n_rows * top_k_, nullptr);
      const auto e = static_cast<size_t>(b.active[i]);
      const int64_t first = b.first[e], n = b.first[e + 1] - first,
                    at = first * padded(n_ff_) + inner_.own.begin;
      const bool all = takes_all(n, s.n_rows), moved = takes_floats_ && !all;
      const float* x = moved ? b.gathered + first * padded(n_embd_) : in;
      const ActBlock* acts = all ? s.acts : s.acts + (s.n_rows + first) * act_blocks(n_embd_);
      return adapted(s,
                     {{Product{gate_[e], b.gate + at, padded(n_ff_)},
                       Product{up_[e], b.up + at, padded(n_ff_)}},
                      2,
                      x,
                      moved ? padded(n_embd_) : s.stride,
                      acts,
                      n,
                      moved ? nullptr : b.row + first},
                     first, b.row + first);
    };
    const auto activate = [&](size_t i, int64_t row, int64_t column, int64_t columns) {
      const bool shared = i == n_active;
      column += (shared ? shared_ : inner_).own.begin;
      const int64_t at = shared ? row * padded(n_ff_shared_) + column
                                : (b.first[b.active[i]] + row) * padded(n_ff_) + column;
      if (!shared && gate_bias_) {
        const int64_t of = b.active[i] * n_ff_ + column;
        s.kernels.add(b.gate + at, gate_bias_ + of, columns);
        s.kernels.add(b.up + at, up_bias_ + of, columns);
      }
      s.kernels.gate(act_, (shared ? b.shared_gate : b.gate) + at,
                     (shared ? b.shared_up : b.up) + at, columns);
    };
    multiply(s, team, n_jobs, std::cref(inner_job), std::cref(activate));
    gather_inner(s, team, b);

    const bool gathered = s.group && gathers_acts(s);
    const ActBlock* acts = gathered ? s.shared_acts : s.acts;
    if (!gathered) quantize_inner(s, team, b);
    const int64_t stride = padded(n_embd_);
    const auto outer_job = [&](size_t i) -> Job {
      if (i == n_active) {
        const Product down = {shared_down_, b.shared_y + outer_.own.begin, stride};
        const int64_t n_ff = padded(n_ff_shared_);
        return adapted(s,
                       {{down, {}}, 1, b.shared_gate, n_ff, acts + shared_at(s), s.n_rows, nullptr},
                       s.n_rows * top_k_, nullptr);
      }
      const auto e = static_cast<size_t>(b.active[i]);
      const int64_t first = b.first[e], n = b.first[e + 1] - first;
      const Product down = {down_[e], b.y + first * stride + outer_.own.begin, stride};
      const float* x = b.gate + first * padded(n_ff_);
      return adapted(
          s, {{down, {}}, 1, x, padded(n_ff_), acts + first * act_blocks(n_ff_), n, nullptr}, first,
          b.row + first);
    };
    multiply(s, team, n_jobs, std::cref(outer_job), nullptr);

    float* out = s.product_output(out_);
    const int64_t pieces = (outer_.own.size() + kColumns - 1) / kColumns;
    team.for_each(s.n_rows * pieces, std::max<int64_t>(1, s.n_rows * pieces / (4 * team.size())),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; ++i)
                      add_up(s, b, i / pieces, outer_.own.begin + i % pieces * kColumns, out);
                  });
    gather(s, team, out, s.stride, outer_);
  }

  std::vector<int64_t> rounds(const KernelTable&, Regime) const override {
    const Form form = gathers_acts_ ? Form::Int8 : Form::F32;
    const int64_t shared = shared_gate_ ? wire_nbytes(form, shared_) : 0;
    return {top_k_ * wire_nbytes(form, inner_) + shared, wire_nbytes(Form::F32, outer_)};
  }

  void device_needs(DeviceNeeds& needs) const override {
    if (weighs_inputs_ || router_norm_ || expert_scale_)
      throw UnsupportedError(
          "gpu: experts with weighed inputs, scales or a norm of their own run on the CPU only; "
          "use --gpu-layers 0");
    needs.cut(router_, Cut::whole(n_experts_));
    if (shared_router_) needs.cut(shared_router_, Cut::whole(1));
    for (const auto* experts : {&gate_, &up_, &down_}) needs.series(*experts);
    needs.vector(router_bias_, n_experts_);
    for (int64_t e = 0; e < n_experts_ && gate_bias_; ++e) {
      needs.vector(gate_bias_ + e * n_ff_, n_ff_);
      needs.vector(up_bias_ + e * n_ff_, n_ff_);
      needs.vector(down_bias_ + e * n_embd_, n_embd_);
    }
  }

  void record(DeviceStep& s) const override {
    record_experts(s, {.in = in_,
                       .out = out_,
                       .choice = choice_,
                       .n_embd = n_embd_,
                       .n_ff = n_ff_,
                       .n_ff_shared = n_ff_shared_,
                       .activation = act_,
                       .router = router_,
                       .shared_router = shared_router_,
                       .gate = gate_,
                       .up = up_,
                       .down = down_,
                       .shared_gate = shared_gate_,
                       .shared_up = shared_up_,
                       .shared_down = shared_down_,
                       .router_bias = router_bias_,
                       .gate_bias = gate_bias_,
                       .up_bias = up_bias_,
                       .down_bias = down_bias_});
  }

 private:
  MoeSizes sizes() const {
    return {n_embd_, n_experts_, top_k_, n_ff_, n_ff_shared_, router_norm_ ? true : false};
  }
  int64_t n_shared() const { return shared_gate_ ? 1 : 0; }

  // Of adapters: A x of two products for each slot of all rows, then for each row of the shared
  // expert.
  int64_t n_projected() const { return 2 * (top_k_ + n_shared()); }
  int64_t low_rank_floats(const Step& s) const {
    return s.low_rank_stride / n_projected() / kTileRows * kTileRows;
  }
  Job adapted(const Step& s, Job job, int64_t slot, const int32_t* rows) const {
    job.adapted_rows = rows;
    job.low_rank_step = low_rank_floats(s);
    job.low_rank_stride = 2 * job.low_rank_step;
    job.low_rank = s.low_rank + slot * job.low_rank_stride;
    return job;
  }

  // What routers see: the experts' input, or another's norm divided by sqrt(n_embd) (Gemma 4).
  InputRows router_rows(Step& s, Team& team, const MoeBuffers& b) const {
    if (!router_norm_) return {s.registers[in_], s.stride, s.n_rows, 0, s.adapters};
    each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        float* y = b.routed + r * padded(n_embd_);
        router_norm_(s.kernels, s.registers[router_in_] + r * s.stride, n_embd_, y);
        s.kernels.scale(y, 1.0f / std::sqrt(static_cast<float>(n_embd_)), n_embd_);
      }
    });
    return {b.routed, padded(n_embd_), s.n_rows, 0, s.adapters};
  }

  // The bias is added once: threads that have rows of their own share the logits.
  void route(Step& s, Team& team, const MoeBuffers& b, const InputRows& in) const {
    const std::array routers = {Product{router_, b.logits, padded(n_experts_)},
                                Product{shared_router_, b.shared_logit, kTileRows}};
    std::span<const Product> left = std::span(routers).first(shared_router_ ? 2 : 1);
    if (router_bias_) {
      multiply(s, team, left[0], router_bias_, in);
      left = left.subspan(1);
    }
    if (!left.empty()) multiply(s, team, left, in);
  }

  // Whether an expert of n rows takes them where they are.
  bool takes_all(int64_t n, int64_t n_rows) const { return n == n_rows && !weighs_inputs_; }

  // Copies a row's input to the slots of its experts, except of experts that take all rows. Inputs
  // that are weighed leave no weight for the outputs.
  void bring_together(const Step& s, const MoeBuffers& b, const float* in, int64_t r) const {
    const int64_t n_kb = act_blocks(n_embd_);
    for (int64_t i = r * top_k_; i < (r + 1) * top_k_; ++i) {
      const int64_t first = b.first[b.chosen[i]], n = b.first[b.chosen[i] + 1] - first;
      if (takes_all(n, s.n_rows)) continue;
      ActBlock* acts = s.acts + (s.n_rows + first) * n_kb;
      if (weighs_inputs_) {
        float* x = b.gathered + b.slot[i] * padded(n_embd_);
        std::copy_n(in + r * s.stride, n_embd_, x);
        s.kernels.scale(x, b.p[i], n_embd_);
        quantize_row(s, x, n_embd_, acts, b.slot[i] - first, n);
        b.p[i] = 1.0f;
        continue;
      }
      for (int64_t kb = 0; kb < n_kb; ++kb)
        acts[act_index(b.slot[i] - first, kb, n, n_kb)] = s.acts[act_index(r, kb, s.n_rows, n_kb)];
      if (takes_floats_)
        std::copy_n(in + r * s.stride, n_embd_, b.gathered + b.slot[i] * padded(n_embd_));
    }
  }

  // Inner values of all slots, and of the shared expert, in one round.
  void gather_inner(Step& s, Team& team, const MoeBuffers& b) const {
    std::array all = {SharedRows{b.gate, padded(n_ff_), s.n_rows * top_k_, &inner_},
                      SharedRows{b.shared_gate, padded(n_ff_shared_), s.n_rows, &shared_}};
    if (gathers_acts(s)) {
      all[0].acts = s.shared_acts;
      all[0].parts = {b.first, static_cast<size_t>(n_experts_ + 1)};
      all[1].acts = s.shared_acts + shared_at(s);
    }
    gather(s, team, std::span(all).first(shared_gate_ ? 2 : 1));
  }
  bool gathers_acts(const Step& s) const { return gathers_acts_ && s.adapters.empty(); }
  // The acts of the shared expert lie behind those of all slots.
  int64_t shared_at(const Step& s) const { return s.n_rows * top_k_ * act_blocks(n_ff_); }

  void quantize_inner(Step& s, Team& team, const MoeBuffers& b) const {
    each_row(s, team, s.n_rows, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        for (int64_t i = r * top_k_; i < (r + 1) * top_k_; ++i) {
          const int64_t first = b.first[b.chosen[i]], n = b.first[b.chosen[i] + 1] - first;
          quantize_row(s, b.gate + b.slot[i] * padded(n_ff_), n_ff_,
                       s.acts + first * act_blocks(n_ff_), b.slot[i] - first, n);
        }
        if (n_shared())
          quantize_row(s, b.shared_gate + r * padded(n_ff_shared_), n_ff_shared_,
                       s.acts + shared_at(s), r, s.n_rows);
      }
    });
  }

  // Sums up to kColumns of a row of the output, from `column` on.
  void add_up(const Step& s, const MoeBuffers& b, int64_t r, int64_t column, float* out) const {
    const int64_t n = std::min(kColumns, outer_.own.end - column);
    float* to = out + r * s.stride + column;
    for (int64_t i = r * top_k_; i < (r + 1) * top_k_; ++i) {
      float* y = b.y + b.slot[i] * padded(n_embd_) + column;
      if (down_bias_) s.kernels.add(y, down_bias_ + b.chosen[i] * n_embd_ + column, n);
      if (i > r * top_k_) {
        s.kernels.add_scaled(to, y, b.p[i], n);
      } else {
        std::copy_n(y, n, to);
        s.kernels.scale(to, b.p[i], n);
      }
    }
    if (n_shared())
      s.kernels.add_scaled(to, b.shared_y + r * padded(n_embd_) + column, b.shared_p[r], n);
  }

  size_t in_, out_, router_in_ = 0;
  RowNorm router_norm_;  // or none
  int64_t n_embd_, n_experts_, top_k_, n_ff_, n_ff_shared_ = 0;
  Activation act_;
  Choice choice_;
  Shares inner_, outer_, shared_;  // of members of a group
  bool takes_floats_ = false, weighs_inputs_ = false, gathers_acts_ = false;
  const float* expert_scale_;                                      // null: none
  const float *router_bias_, *gate_bias_, *up_bias_, *down_bias_;  // of all experts; null: none
  const PackedTensor *router_, *shared_router_ = nullptr;
  std::vector<const PackedTensor*> gate_, up_, down_;
  const PackedTensor *shared_gate_ = nullptr, *shared_up_ = nullptr, *shared_down_ = nullptr;
};

}  // namespace

std::unique_ptr<Block> make_moe(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<Moe>(spec, c);
}

}  // namespace pyflow
