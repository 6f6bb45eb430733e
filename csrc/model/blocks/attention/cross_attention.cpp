// Attention to a source: h = W_o attention(W_q h, keys and values of the source). Those are computed
// once, from the rows of an encoder, and kept in the cells of the source (kv/sources.h).
#include <algorithm>
#include <array>

#include "model/blocks/attention/attention_weights.h"
#include "model/blocks/block.h"
#include "model/blocks/linear.h"
#include "model/group/group.h"

namespace pyflow {
namespace {

// Rows that one thread attends for; those of one source share loads of its keys.
constexpr int64_t kRowsAtOnce = 16;

class CrossAttention final : public Block, private AttentionWeights {
 public:
  CrossAttention(const BlockSpec& spec, BlockContext& c) : AttentionWeights(spec, c) {}

  ScratchNeeds needs(CacheType cells) const override {
    const auto floats = [cells](int64_t n_heads, int64_t dim) {
      const int64_t in_cells = cell_dim(dim, cells);
      return padded(n_heads * dim) + (in_cells == dim ? 0 : n_heads * in_cells);
    };
    const int64_t of_rows = floats(n_heads_, head_dim_) + floats(n_heads_, value_dim_) +
                            padded(mixed_dim()) - padded(n_heads_ * value_dim_),
                  of_source = floats(n_kv_heads_, head_dim_) + floats(n_kv_heads_, value_dim_);
    return {.floats_per_row = std::max(of_rows, of_source),
            .act_blocks_per_row = act_blocks(std::max(n_embd_, mixed_dim())),
            .panel_cols = std::max(n_embd_, mixed_dim())};
  }

  void forward(Step& s, Team& team) const override {
    const KvView& kv = s.sources->view(layer_);
    float* at = s.temp;
    const Both q = take(at, s.n_rows, n_heads_, head_dim_, kv.type);
    Both mixed = take(at, s.n_rows, n_heads_, value_dim_, kv.type, whole_.n_heads);
    float* all_mixed = mixed.plain.rows;
    mixed.own(own_q_.begin);
    multiply(s, team, std::array{Product{q_, q.plain.rows, q.plain.stride}},
             all_rows(s, s.registers[in_], s.stride));
    const AttendArgs args = {.kv = kv,
                             .q = q.cells.rows,
                             .q_stride = q.cells.stride,
                             .out = mixed.cells.rows,
                             .out_stride = mixed.cells.stride,
                             .views = s.source_views.data(),
                             .n_heads = n_heads_,
                             .scale = scale_,
                             .softcap = softcap_,
                             .scratch = s.kernel_scratch};
    const int64_t n_tiles = (s.n_rows + kRowsAtOnce - 1) / kRowsAtOnce;
    team.for_each(n_tiles * n_kv_heads_, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t head = i % n_kv_heads_, first = head * group(), last = first + group(),
                      row = i / n_kv_heads_ * kRowsAtOnce,
                      end_row = std::min(row + kRowsAtOnce, s.n_rows);
        for (int64_t r = row; r < end_row; ++r) {
          turn(s, r, q.plain, first, last, q_bias_, q_norm_);
          copy_heads(q.plain, q.cells, r, first, last);
        }
        s.kernels.attend(args, row, end_row, head);
        for (int64_t r = row; r < end_row; ++r)
          copy_heads(mixed.cells, mixed.plain, r, first, last);
      }
    });
    const SharedRows in = shared_rows(s, *o_, all_mixed, mixed.plain.stride, mixed_);
    gather(s, team, in);
    float* out = s.product_output(out_);
    multiply(s, team, Product{o_, out + embd_.own.begin, s.stride}, o_bias_, all_rows(s, in));
    gather(s, team, out, s.stride, embd_);
  }

  std::vector<int64_t> rounds(const KernelTable& kernels, Regime regime) const override {
    return {wire_nbytes(form_of(kernels, *o_, mixed_, regime), mixed_),
            wire_nbytes(Form::F32, embd_)};
  }

  void read_source(Step& s, Team& team) const override {
    const KvView& kv = s.sources->view(layer_);
    float* at = s.temp;
    const Both k = take(at, s.n_rows, n_kv_heads_, head_dim_, kv.type),
               v = take(at, s.n_rows, n_kv_heads_, value_dim_, kv.type);
    const std::array products = {Product{k_, k.plain.rows, k.plain.stride},
                                 Product{v_, v.plain.rows, v.plain.stride}};
    multiply(s, team, products, all_rows(s, s.registers[0], s.stride));
    const std::span<const int32_t> slots = s.sources->slots(layer_);
    team.for_each(s.n_rows, std::max<int64_t>(1, s.n_rows / (4 * team.size())),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t r = begin; r < end; ++r) {
                      turn(s, r, k.plain, 0, n_kv_heads_, k_bias_, k_norm_);
                      if (v_bias_)
                        s.kernels.add(v.plain.at(r, 0), v_bias_, n_kv_heads_ * value_dim_);
                      copy_heads(k.plain, k.cells, r, 0, n_kv_heads_);
                      copy_heads(v.plain, v.cells, r, 0, n_kv_heads_);
                      for (int64_t h = 0; h < n_kv_heads_; ++h)
                        s.kernels.store_kv(kv, slots[static_cast<size_t>(r)], h, k.cells.at(r, h),
                                           v.cells.at(r, h));
                    }
                  });
  }

 private:
  // As matrices have them, and as cells have them: one memory if heads fill their cells.
  struct Both {
    Heads plain, cells;
    // Begins with head `first` of all members' in plain rows.
    void own(int64_t first) {
      const bool one = cells.rows == plain.rows;
      plain.rows += first * plain.dim;
      if (one) cells.rows = plain.rows;
    }
  };

  // all: heads of plain rows, those of other members too; 0: no others.
  static Both take(float*& at, int64_t n_rows, int64_t n_heads, int64_t dim, CacheType type,
                   int64_t all = 0) {
    const auto next = [&](int64_t stride, int64_t of) {
      const Heads heads = {at, stride, of};
      at += n_rows * stride;
      return heads;
    };
    const Heads plain = next(padded(std::max(n_heads, all) * dim), dim);
    const int64_t in_cells = cell_dim(dim, type);
    return {plain, in_cells == dim ? plain : next(n_heads * in_cells, in_cells)};
  }
};

}  // namespace

std::unique_ptr<Block> make_cross_attention(const BlockSpec& spec, BlockContext& c) {
  return std::make_unique<CrossAttention>(spec, c);
}

}  // namespace pyflow
