#include "model/scratch.h"

#include "model/stage.h"

namespace pyflow {
namespace {

constexpr int64_t kFloat = sizeof(float), kAct = sizeof(ActBlock), kHalf = sizeof(uint16_t);

}  // namespace

ScratchLayout::ScratchLayout(const Stage& stage, int64_t n_batch, int64_t n_ctx, CacheType cells,
                             const ScratchNeeds& more) {
  ScratchNeeds needs = stage.needs(cells);
  needs.at_least(more);
  stride = padded(stage.spec().n_embd);
  carried_stride = padded(stage.spec().n_carried);
  head_stride = padded(stage.spec().n_vocab);
  head_rows = stage.last() ? std::min(kHeadRows, n_batch) : 0;
  partial_floats =
      needs.partial_floats * std::min(kSplitRows, n_batch) * (n_ctx / kLogicalSpan + 2);
  row_floats = needs.row_floats_per_row;
  acts_per_row = needs.act_blocks_per_row;
  has_pairs = stage.fine_inputs();
  has_panels = stage.has_prefill();
  n_registers = needs.n_registers;
  kernel_nbytes = (stage.kernels().scratch_nbytes + 63) / 64 * 64;
  const int64_t pairs_per_row = has_pairs ? 2 * acts_per_row : 0;
  int64_t angles_per_row = 0;
  for (const RopeSpec& r : stage.spec().ropes)
    angles_per_row += 2 * static_cast<int64_t>(r.pairs());

  for (size_t r = 0; r < n_registers; ++r) registers[r] = take(n_batch * stride * kFloat);
  carried = take(n_batch * carried_stride * kFloat);
  temp = take(n_batch * needs.floats_per_row * kFloat);
  row_temp = take(n_batch * row_floats * kFloat);
  acts = take(n_batch * acts_per_row * kAct);
  pairs = take(n_batch * pairs_per_row * kAct);
  panels = take(has_panels ? panel_values(n_batch, needs.panel_cols) * kHalf : 0);
  kernels = take(kernel_nbytes * stage.pool().size());
  partials = take(partial_floats * kFloat);
  gathered = take(head_rows * stride * kFloat);
  logits = take(head_rows * head_stride * kFloat);
  angles = take(n_batch * angles_per_row * kFloat);
  const int64_t own_rows = kOwnRows * stage.pool().size();
  for (size_t r = 0; r < n_registers; ++r) own_registers[r] = take(own_rows * stride * kFloat);
  own_carried = take(own_rows * carried_stride * kFloat);
  own_row_temp = take(own_rows * row_floats * kFloat);
  own_acts = take(own_rows * acts_per_row * kAct);
  own_pairs = take(own_rows * pairs_per_row * kAct);
}

size_t ScratchLayout::take(int64_t size) {
  const size_t at = nbytes;
  nbytes += (static_cast<size_t>(size) + 63) / 64 * 64;
  return at;
}

StepMemory Scratch::step(const Team& team, const StepRows& rows) const {
  const int64_t first = kOwnRows * team.rank();                 // of this thread's own rows
  const bool by_panels = at_.has_panels && rows.n_prefill > 0;  // which all threads share
  const bool own_rows = rows.n_rows <= kOwnRows && !by_panels;
  StepMemory m{.stride = at_.stride,
               .own_rows = own_rows,
               .registers = {},
               .shared = {},
               .own = {},
               .carried = own_rows && team.rank() != 0
                              ? at<float>(at_.own_carried) + first * at_.carried_stride
                              : at<float>(at_.carried),
               .carried_out = at<float>(at_.carried),
               .carried_stride = at_.carried_stride,
               .temp = at<float>(at_.temp),
               .row_temp = own_rows ? at<float>(at_.own_row_temp) + first * at_.row_floats
                                    : at<float>(at_.row_temp),
               .acts = own_rows ? at<ActBlock>(at_.own_acts) + first * at_.acts_per_row
                                : at<ActBlock>(at_.acts),
               .shared_acts = at<ActBlock>(at_.acts),
               .pairs = own_rows ? at<ActBlock>(at_.own_pairs) + first * 2 * at_.acts_per_row
                                 : at<ActBlock>(at_.pairs),
               .panels = at<uint16_t>(at_.panels),
               .kernel_scratch = at<uint8_t>(at_.kernels) + at_.kernel_nbytes * team.rank(),
               .partials = at<float>(at_.partials),
               .partial_capacity = at_.partial_floats,
               .angles = at<float>(at_.angles)};
  if (!at_.has_pairs) m.pairs = nullptr;
  if (!at_.has_panels) m.panels = nullptr;
  for (size_t r = 0; r < at_.n_registers; ++r) {
    m.shared[r] = at<float>(at_.registers[r]);
    m.own[r] = at<float>(at_.own_registers[r]) + first * at_.stride;
  }
  if (team.rank() == 0) m.own[0] = m.shared[0];  // so that hidden() finds x, as carried() does
  m.registers = m.shared;
  return m;
}

}  // namespace pyflow
