#include "model/device/experts.h"

#include <algorithm>
#include <array>
#include <string>
#include <utility>
#include <vector>

#include "core/errors.h"

namespace pyflow {
namespace {

constexpr int64_t kFewRows = 4;

class Experts {
 public:
  Experts(DeviceStep& step, const ExpertWeights& weights)
      : s_(step), w_(weights), n_slots_(step.n_rows * weights.choice.top_k) {}

  void record() {
    const auto logits = s_.take(w_.choice.n_experts), shared_logit = s_.take(1);
    words_ = s_.take(kSlotWords * w_.choice.top_k + 1);
    slots_ = take_slots(w_.n_embd);
    up_ = take_slots(w_.n_ff);
    inner_ = take_slots(w_.n_ff);
    if (has_shared()) {
      shared_up_ = s_.take(w_.n_ff_shared);
      shared_inner_ = s_.take(w_.n_ff_shared);
      shared_y_ = s_.take(w_.n_embd);
    }
    s_.each([&](DeviceMember& m) {
      const std::array routers = {DeviceProduct{w_.router, logits[m.number]},
                                  DeviceProduct{w_.shared_router, shared_logit[m.number]}};
      m.multiply(std::span(routers).first(w_.shared_router ? 2 : 1), m.registers[w_.in], s_.n_rows);
      m.add(logits[m.number], w_.router_bias, s_.n_rows, w_.choice.n_experts,
            {0, w_.choice.n_experts});
    });
    in_place_ = s_.n_rows <= kFewRows && !w_.gate_bias && w_.choice.plain() &&
                std::ranges::all_of(s_.members, [&](DeviceMember& m) {
                  return m.ops.device().info().has_f64 && m.weights.series(*w_.gate[0]) &&
                         m.weights.series(*w_.up[0]) && m.weights.series(*w_.down[0]);
                });
    if (in_place_)
      choose_there(logits, shared_logit);
    else
      choose_here(logits, shared_logit);
    s_.each([&](DeviceMember& m) { record_inner(m); });
    s_.gather(inner_, ff(), n_slots_);
    if (has_shared()) s_.gather(shared_inner_, shared_ff());
    s_.each([&](DeviceMember& m) { record_outer(m); });
    s_.gather(s_.register_rows(w_.out), embd());
  }

 private:
  bool has_shared() const { return w_.shared_gate != nullptr; }
  Cut ff() const { return Cut::tiles(w_.n_ff); }
  Cut shared_ff() const { return Cut::tiles(w_.n_ff_shared); }
  Cut embd() const { return Cut::tiles(w_.n_embd); }

  // Rows of n floats for each slot, one after the other.
  DeviceStep::Rows take_slots(int64_t n) {
    DeviceStep::Rows all = s_.take(w_.choice.top_k * padded(n));
    for (FloatRows& each : all) each.stride = padded(n);
    return all;
  }

  // Words: rows of slots (of choices in place: the experts chosen), then slots of what rows have
  // chosen, their weights, and those of the shared expert.
  FloatRows word(const DeviceMember& m, int64_t i) const {
    return columns_of(words_[m.number], i * n_slots_);
  }

  // A slot is the place of a choice, row by row.
  void choose_there(const DeviceStep::Rows& logits, const DeviceStep::Rows& shared_logit) {
    std::vector<int32_t>& places = s_.keep(static_cast<size_t>(n_slots_));
    for (size_t i = 0; i < places.size(); ++i) places[i] = static_cast<int32_t>(i);
    s_.each([&](DeviceMember& m) {
      const FloatRows slots = word(m, 1);
      m.queue.upload(places.data(), *slots.buffer, static_cast<size_t>(slots.first) * sizeof(float),
                     places.size() * sizeof(int32_t));
      m.ops.choose(m.queue, w_.choice, logits[m.number],
                   w_.shared_router ? shared_logit[m.number] : FloatRows{},
                   {word(m, 0), word(m, 2), word(m, 3)}, s_.n_rows);
    });
  }

  // By the arithmetic of the CPU's own experts; slots are grouped by expert.
  void choose_here(const DeviceStep::Rows& logits, const DeviceStep::Rows& shared_logit) {
    const int64_t n_rows = s_.n_rows, top_k = w_.choice.top_k, n_experts = w_.choice.n_experts;
    const std::vector<float> scores = s_.download(logits, n_rows),
                             shared = s_.download(shared_logit, n_rows);
    std::vector<int32_t> chosen(static_cast<size_t>(n_slots_));
    std::vector<float> keys(static_cast<size_t>(n_experts));
    std::vector<int32_t>& words = s_.keep(static_cast<size_t>(kSlotWords * n_slots_ + n_rows));
    int32_t *row = words.data(), *slot = row + n_slots_;
    auto *p = reinterpret_cast<float*>(slot + n_slots_), *shared_p = p + n_slots_;
    for (int64_t r = 0; r < n_rows; ++r) {
      choose(w_.choice, scores.data() + r * padded(n_experts), keys.data(), p + r * top_k,
             chosen.data() + r * top_k);
      shared_p[r] = w_.shared_router ? sigmoid(shared[static_cast<size_t>(r * kTileRows)]) : 1.0f;
    }
    first_.resize(static_cast<size_t>(n_experts) + 1);
    active_.resize(static_cast<size_t>(n_experts));
    int32_t n_active = 0;
    assign_slots(w_.choice, n_rows,
                 {chosen.data(), slot, row, first_.data(), active_.data(), &n_active});
    active_.resize(static_cast<size_t>(n_active));
    s_.upload(words, words_);
  }

  // work(expert, its slots, rows of these in others) for each that has some.
  template <class Work>
  void each_expert(Work&& work) const {
    for (const int32_t e : active_) {
      const auto i = static_cast<size_t>(e);
      const int64_t first = first_[i];
      work(i, first_[i + 1] - first,
           [first](const FloatRows& rows) { return columns_of(rows, first * rows.stride); });
    }
  }

  // That of an expert, to what this member has of n rows.
  void add_bias(DeviceMember& m, const FloatRows& rows, const float* biases, size_t expert,
                int64_t n, int64_t width, const Cut& cut) const {
    if (biases)
      m.add(rows, biases + static_cast<int64_t>(expert) * width, n, width, m.rows_of(cut));
  }

  void record_gate(DeviceMember& m, const FloatRows& inner, const FloatRows& up, int64_t n_rows,
                   const Share& own) const {
    m.ops.gate(m.queue, w_.activation, columns_of(inner, own.begin), columns_of(up, own.begin),
               n_rows, own.size());
  }

  void record_inner(DeviceMember& m) const {
    const size_t i = m.number;
    if (in_place_) {
      const std::array products = {
          DeviceMember::ChosenProduct{m.weights.series(*w_.up[0]), up_[i]},
          DeviceMember::ChosenProduct{m.weights.series(*w_.gate[0]), inner_[i]}};
      m.multiply(products, word(m, 0), w_.choice.top_k, m.registers[w_.in], s_.n_rows);
    } else {
      m.ops.take_rows(m.queue, m.registers[w_.in], word(m, 0), slots_[i], n_slots_, w_.n_embd);
      each_expert([&](size_t e, int64_t n, const auto& of) {
        const std::array products = {DeviceProduct{w_.up[e], of(up_[i])},
                                     DeviceProduct{w_.gate[e], of(inner_[i])}};
        m.multiply(products, of(slots_[i]), n);
        add_bias(m, of(up_[i]), w_.up_bias, e, n, w_.n_ff, ff());
        add_bias(m, of(inner_[i]), w_.gate_bias, e, n, w_.n_ff, ff());
      });
    }
    record_gate(m, inner_[i], up_[i], n_slots_, m.rows_of(ff()));
    if (!has_shared()) return;
    const std::array products = {DeviceProduct{w_.shared_up, shared_up_[i]},
                                 DeviceProduct{w_.shared_gate, shared_inner_[i]}};
    m.multiply(products, m.registers[w_.in], s_.n_rows);
    record_gate(m, shared_inner_[i], shared_up_[i], s_.n_rows, m.rows_of(shared_ff()));
  }

  void record_outer(DeviceMember& m) const {
    const size_t i = m.number;
    if (in_place_) {
      const DeviceMember::ChosenProduct down = {m.weights.series(*w_.down[0]), slots_[i]};
      m.multiply(std::span(&down, 1), word(m, 0), 1, inner_[i], n_slots_);
    } else {
      each_expert([&](size_t e, int64_t n, const auto& of) {
        const DeviceProduct down = {w_.down[e], of(slots_[i])};
        m.multiply(std::span(&down, 1), of(inner_[i]), n);
        add_bias(m, of(slots_[i]), w_.down_bias, e, n, w_.n_embd, embd());
      });
    }
    const Share own = m.rows_of(embd());
    device::Ops::Weighted sum = {
        columns_of(slots_[i], own.begin), word(m, 1), word(m, 2), w_.choice.top_k, {}, {}};
    if (has_shared()) {
      const DeviceProduct down = {w_.shared_down, shared_y_[i]};
      m.multiply(std::span(&down, 1), shared_inner_[i], s_.n_rows);
      sum.last = columns_of(shared_y_[i], own.begin);
      sum.last_weights = word(m, 3);
    }
    m.ops.weighted_rows(m.queue, columns_of(m.registers[w_.out], own.begin), sum, s_.n_rows,
                        own.size());
  }

  DeviceStep& s_;
  const ExpertWeights& w_;
  const int64_t n_slots_;
  bool in_place_ = false;
  DeviceStep::Rows words_, slots_, up_, inner_, shared_up_, shared_inner_, shared_y_;
  std::vector<int32_t> first_, active_;  // of a choice by the host
};

}  // namespace

Choice choice_of(const BlockSpec& spec) {
  Choice choice = {spec.integer("n_experts"), spec.integer("top_k"), spec.flag("normalize"),
                   spec.number("scale")};
  const auto is = [&](const char* key, const char* word) {
    return spec.has(key) && spec.text(key) == word;
  };
  choice.sigmoid = is("gating", "sigmoid");
  choice.group_by_two = is("group_score", "two");
  if (spec.has("n_groups")) choice.n_groups = spec.integer("n_groups");
  if (spec.has("n_groups_used")) choice.n_groups_used = spec.integer("n_groups_used");
  const auto [n, used] = std::pair(choice.n_groups, choice.n_groups_used);
  if (n < 1 || used < 1 || used > n ||
      (n > 1 && (choice.n_experts % n || choice.top_k > choice.n_experts / n * used)))
    throw ShapeError("moe: " + std::to_string(choice.top_k) + " of " +
                     std::to_string(choice.n_experts) + " experts in " + std::to_string(used) +
                     " of " + std::to_string(n) +
                     " groups: expected equal groups, and enough experts in those used");
  return choice;
}

void record_experts(DeviceStep& s, const ExpertWeights& w) { Experts(s, w).record(); }

}  // namespace pyflow
