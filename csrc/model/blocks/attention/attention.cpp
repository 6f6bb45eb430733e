// h = W_o attention(rope(norm(W_q h + b_q)), rope(norm(W_k h + b_k)), W_v h + b_v) + b_o over the
// KV cache, with grouped queries; biases, norms, rope and ALiBi slopes if the model has them.
#include <algorithm>
#include <array>
#include <utility>

#include "model/blocks/attention/attention_weights.h"
#include "model/blocks/attention/split.h"
#include "model/blocks/branch.h"
#include "model/blocks/linear.h"
#include "model/observer.h"

namespace pyflow {
namespace {

// Queries, keys, values, and the mixes of values.
struct Rows {
  Heads q, k, v, mixed;
};
// As matrices have them, and as cells have them: one memory if heads fill their cells.
struct RowMemory {
  Rows plain, cells;
  Heads mixed;         // of all members
  Heads all_q, all_k;  // likewise, where norms need them
};

class Attention final : public Branch, private AttentionWeights {
 public:
  Attention(const BlockSpec& spec, BlockContext& c) : AttentionWeights(spec, c) {}

  void device_needs(DeviceNeeds& needs) const override { AttentionWeights::device_needs(needs); }
  void record(DeviceStep& s) const override { AttentionWeights::record(s); }

  ScratchNeeds needs(CacheType cells) const override {
    const auto floats = [cells](int64_t n_heads, int64_t dim) {
      const int64_t in_cells = cell_dim(dim, cells);
      return padded(n_heads * dim) + (in_cells == dim ? 0 : n_heads * in_cells);
    };
    const int64_t others = padded(mixed_dim()) - padded(n_heads_ * value_dim_) +
                           (gathers_heads() ? padded(q_dim()) + padded(k_dim()) : 0);
    return {.floats_per_row = floats(n_heads_, head_dim_) + floats(n_kv_heads_, head_dim_) +
                              floats(n_kv_heads_, value_dim_) + floats(n_heads_, value_dim_) +
                              others,
            .act_blocks_per_row = act_blocks(std::max(n_embd_, mixed_dim())),
            .panel_cols = std::max(n_embd_, mixed_dim()),
            .partial_floats = n_heads_ * (cell_dim(value_dim_, cells) + 2)};
  }

  SharedRows inner(Step& s, Team& team, bool /*early*/) const override {
    const KvView& kv = s.kv->view(layer_);
    const RowMemory memory = lay_out(s.temp, s.n_rows, kv.type);
    const auto& [q, k, v, mixed] = memory.plain;
    const float* in = s.registers[in_];
    const std::array products = {Product{q_, q.rows, q.stride}, Product{k_, k.rows, k.stride},
                                 Product{v_, v.rows, v.stride}};
    multiply(s, team, std::span(products).first(n_inputs()), all_rows(s, in, s.stride));
    if (norms_all_ && (q_norm_ || k_norm_)) normalize(s, team, memory);
    const AttendArgs args = {.kv = kv,
                             .q = memory.cells.q.rows,
                             .q_stride = memory.cells.q.stride,
                             .out = memory.cells.mixed.rows,
                             .out_stride = memory.cells.mixed.stride,
                             .views = s.kv->views(layer_).data() + s.first_row,
                             .n_heads = n_heads_,
                             .scale = scale_,
                             .softcap = softcap_,
                             .slopes = slopes_.empty() ? nullptr : slopes_.data(),
                             .scratch = s.kernel_scratch,
                             .bias = biases_.empty() ? nullptr : biases_.data(),
                             .bias_reach = bias_reach_,
                             .sinks = sinks_};
    const SplitAttention split(s, team, args, n_by_tiles(s));
    if (s.own_rows && split.whole()) {
      // A head is prepared and attended to by one thread; no other thread reads its cells in this
      // step.
      team.for_each(n_kv_heads_, 1, [&](int64_t begin, int64_t end) {
        for (int64_t r = 0; r < s.n_rows; ++r) prepare(s, memory, r, begin, end);
        for (int64_t h = begin; h < end; ++h) s.kernels.attend(args, 0, s.n_rows, h);
        for (int64_t r = 0; r < s.n_rows; ++r)
          take_mixed(memory, r, begin * group(), end * group());
      });
    } else {
      team.for_each(s.n_rows * n_kv_heads_,
                    std::max<int64_t>(1, s.n_rows * n_kv_heads_ / (4 * team.size())),
                    [&](int64_t begin, int64_t end) {
                      for (int64_t i = begin, n; i < end; i += n) {
                        const int64_t head = i % n_kv_heads_;
                        n = std::min(n_kv_heads_ - head, end - i);
                        prepare(s, memory, i / n_kv_heads_, head, head + n);
                      }
                    });
      split(team, [&](int64_t row, int64_t first, int64_t last) {
        take_mixed(memory, row, first, last);
      });
    }
    if (s.observer && values_apart_) observe(s, team, args, in);
    gather_carried(s, team);
    return shared_rows(s, *o_, memory.mixed.rows, mixed.stride, mixed_);
  }

  float* outer(Step& s, Team& team, const SharedRows& in, bool early) const override {
    return multiply_outer(s, team, *o_, o_bias_, in, out_, early);
  }
  const Shares& outputs() const override { return embd_; }

  std::vector<int64_t> inner_rounds(const KernelTable&, Regime) const override {
    std::vector<int64_t> all;
    if (gathers_heads()) all.push_back(heads_nbytes(all_q_, all_k_));
    if (gathers_carried()) all.push_back(heads_nbytes(all_k_, all_v_));
    return all;
  }
  int64_t inner_nbytes(const KernelTable& kernels, Regime regime) const override {
    return wire_nbytes(form_of(kernels, *o_, mixed_, regime), mixed_);
  }

 private:
  static int64_t heads_nbytes(const Shares& some, const Shares& others) {
    return wire_nbytes(Form::F32, some) + wire_nbytes(Form::F32, others);
  }
  bool gathers_carried() const { return kv_at_ >= 0 && !given_; }
  // Matrices of the input: of queries, keys and values; keys may be values too, or come from another
  // layer.
  size_t n_inputs() const { return k_ == nullptr ? 1 : k_ == v_ ? 2 : 3; }
  // Whether norms of all heads need those of other members.
  bool gathers_heads() const {
    return norms_all_ && (q_norm_ || k_norm_) && n_heads_ < whole_.n_heads;
  }

  // Biases and norms over all heads. Members bring theirs together before, and take them after.
  void normalize(Step& s, Team& team, const RowMemory& memory) const {
    const Heads &q = memory.plain.q, &k = memory.plain.k;
    const auto each = [&](const auto& work) {
      team.for_each(2 * s.n_rows, 1, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) work(i / 2, i % 2 == 0);
      });
    };
    const auto move = [&](int64_t row, bool queries, bool back) {
      const Heads& own = queries ? q : k;
      float* all =
          (queries ? memory.all_q : memory.all_k).at(row, queries ? own_q_.begin : own_kv_.begin);
      const int64_t n = (queries ? n_heads_ : n_kv_heads_) * head_dim_;
      if (back)
        std::copy_n(all, n, own.at(row, 0));
      else
        std::copy_n(own.at(row, 0), n, all);
    };
    if (gathers_heads()) {
      each([&](int64_t row, bool queries) { move(row, queries, false); });
      const std::array all = {
          SharedRows{memory.all_q.rows, memory.all_q.stride, s.n_rows, &all_q_},
          SharedRows{memory.all_k.rows, memory.all_k.stride, s.n_rows, &all_k_}};
      gather(s, team, all);
    }
    each([&](int64_t row, bool queries) {
      if (queries)
        normalize_all(s, memory.all_q.at(row, 0), q_dim(), q_bias_, q_norm_);
      else
        normalize_all(s, memory.all_k.at(row, 0), k_dim(), k_bias_, k_norm_);
      if (gathers_heads()) move(row, queries, true);
    });
  }

  RowMemory lay_out(float* temp, int64_t n_rows, CacheType cells) const {
    const auto take = [&](int64_t n_heads, int64_t dim) {
      const Heads heads = {temp, padded(n_heads * dim), dim};
      temp += n_rows * heads.stride;
      return heads;
    };
    RowMemory memory;
    Rows& p = memory.plain;
    p = {.q = take(n_heads_, head_dim_),
         .k = take(n_kv_heads_, head_dim_),
         .v = take(n_kv_heads_, value_dim_),
         .mixed = take(whole_.n_heads, value_dim_)};
    memory.mixed = p.mixed;
    p.mixed.rows += own_q_.begin * value_dim_;
    memory.all_q = gathers_heads() ? take(whole_.n_heads, head_dim_) : p.q;
    memory.all_k = gathers_heads() ? take(whole_.n_kv_heads, head_dim_) : p.k;
    const auto in_cells = [&](const Heads& plain, int64_t n_heads) {
      const int64_t dim = cell_dim(plain.dim, cells);
      return dim == plain.dim ? plain : take(n_heads, dim);
    };
    memory.cells = {.q = in_cells(p.q, n_heads_),
                    .k = in_cells(p.k, n_kv_heads_),
                    .v = in_cells(p.v, n_kv_heads_),
                    .mixed = in_cells(p.mixed, n_heads_)};
    return memory;
  }

  // Stores heads [first, last) of the keys and values of a row, and prepares the queries that share
  // them.
  void prepare(const Step& s, const RowMemory& memory, int64_t row, int64_t first,
               int64_t last) const {
    const auto& [q, k, v, mixed] = memory.plain;
    const Rows& cells = memory.cells;
    turn(s, row, q, first * group(), last * group(), q_bias_, q_norm_);
    if (k_) prepare_cells(s, memory.plain, row, first, last);
    if (given_) move_carried(s.carried, s, memory.plain, row, first, last);
    if (gathers_carried())
      move_carried(s.carried_out, s, memory.plain, row, first, last, /*back=*/true);
    if (temperature_)
      s.kernels.scale(q.at(row, first * group()),
                      temperature_.at(s.rows[static_cast<size_t>(row)].position),
                      (last - first) * group() * head_dim_);
    copy_heads(q, cells.q, row, first * group(), last * group());
    if (sees_ == Sees::CellsOfLayer) return;
    copy_heads(k, cells.k, row, first, last);
    copy_heads(v, cells.v, row, first, last);
    const int32_t slot = s.kv->slots(layer_)[static_cast<size_t>(s.first_row + row)];
    for (int64_t h = first; h < last; ++h)
      s.kernels.store_kv(s.kv->view(layer_), slot, h, cells.k.at(row, h), cells.v.at(row, h));
  }

  // Biases, norms and rotation of keys and values.
  void prepare_cells(const Step& s, const Rows& plain, int64_t row, int64_t first,
                     int64_t last) const {
    const auto& [q, k, v, mixed] = plain;
    if (k_ == v_) std::copy_n(k.at(row, first), (last - first) * head_dim_, v.at(row, first));
    turn(s, row, k, first, last, k_bias_, k_norm_);
    if (v_bias_)
      s.kernels.add(v.at(row, first), v_bias_ + first * value_dim_, (last - first) * value_dim_);
    for (int64_t h = first; h < last && v_norm_; ++h)
      v_norm_.norm(s.kernels, v.at(row, h), value_dim_, v.at(row, h));
  }

  // Copies keys and values from what a row carries, all keys before all values, or back.
  void move_carried(float* carried, const Step& s, const Rows& plain, int64_t row, int64_t first,
                    int64_t last, bool back = false) const {
    for (const auto& [heads, at] : {std::pair{&plain.k, int64_t{0}}, {&plain.v, k_dim()}}) {
      float* there =
          carried + row * s.carried_stride + kv_at_ + at + (own_kv_.begin + first) * heads->dim;
      const int64_t n = (last - first) * heads->dim;
      if (back)
        std::copy_n(heads->at(row, first), n, there);
      else
        std::copy_n(there, n, heads->at(row, first));
    }
  }

  // Members bring together what rows carry of each.
  void gather_carried(Step& s, Team& team) const {
    if (!gathers_carried()) return;
    float* keys = s.carried_out + kv_at_;
    const std::array both = {SharedRows{keys, s.carried_stride, s.n_rows, &all_k_},
                             SharedRows{keys + k_dim(), s.carried_stride, s.n_rows, &all_v_}};
    gather(s, team, both);
  }

  // Takes query heads [first, last) of a row's mixes out of the size of cells.
  static void take_mixed(const RowMemory& memory, int64_t row, int64_t first, int64_t last) {
    copy_heads(memory.cells.mixed, memory.plain.mixed, row, first, last);
  }

  // So many rows, the first ones, take the arithmetic of prompts: if the products of this block do,
  // wherever its neighbours are.
  int64_t n_by_tiles(const Step& s) const {
    const auto by_panels = [&s](const PackedTensor* w) {
      return w && s.kernels.prefill_matmul[static_cast<size_t>(w->dtype())] != nullptr;
    };
    const bool any = by_panels(q_) || by_panels(k_) || by_panels(v_) || by_panels(o_);
    return any && s.kernels.prefill_attend && biases_.empty() ? s.n_prefill : 0;
  }

  void observe(const Step& s, Team& team, const AttendArgs& args, const float* in) const {
    s.observer->attention(
        team,
        {.values = *v_,
         .x = in,
         .x_stride = s.stride,
         .rows = s.rows,
         .slots = s.kv->slots(layer_).subspan(static_cast<size_t>(s.first_row), s.rows.size()),
         .n_slots = (s.kv->groups()[s.kv->group_of(layer_)].capacity + 15) / 16 * 16,
         .attended = args});
  }
};

}  // namespace

std::unique_ptr<Block> make_attention(const BlockSpec& spec, BlockContext& c) {
  if (spec.has("kv_from") && spec.text("kv_from") == "encoder")
    return make_cross_attention(spec, c);
  if (spec.has("mask") && spec.text("mask") == "full") return make_full_attention(spec, c);
  return std::make_unique<Attention>(spec, c);
}

}  // namespace pyflow
