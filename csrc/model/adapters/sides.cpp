#include "model/adapters/sides.h"

#include <algorithm>

namespace pyflow {
namespace {

int64_t start_of(const TensorRef& ref) {
  if (ref.transposed) return ref.inputs.first;
  return ref.rows.empty() ? 0 : ref.rows[0].first;
}

// Segments of what the adapter is beside, from those of a tensor with `skipped` rows before.
Segments outputs_of(const LowRankSpec& spec, const TensorRef& ref, int64_t skipped, int64_t rows) {
  const bool is_all = ref.rows.empty() && spec.first == 0 && spec.step == 1 && spec.n_parts == 1;
  if (is_all) return spec.order;
  if (!spec.order.empty()) {  // a member has some of the rows
    Segments some;
    const TensorRef all = {.name = spec.b, .rows = spec.order};
    for (const auto& [start, count] : ref.rows)
      for (const auto& segment : all.slice(start, count).rows) some.push_back(segment);
    return some;
  }
  Segments all = ref.rows.empty() ? Segments{{0, rows}} : ref.rows;
  for (auto& [start, count] : all) start = spec.first + (start - skipped) * spec.step;
  return all;
}

}  // namespace

int64_t part_of(const LowRankSpec& spec, const TensorRef& ref) {
  return spec.part_rows > 0 ? start_of(ref) / spec.part_rows : 0;
}

Sides sides(const LowRankSpec& spec, const TensorRef& ref, const PieceTensors& tensors,
            int64_t rows, int64_t cols) {
  const int64_t n = spec.n_parts, base = part_of(spec, ref);
  const int64_t part = n == 1 ? 0 : spec.of >= 0 ? spec.of : base;
  const int64_t skipped = base * spec.part_rows;
  const bool flipped = ref.inputs.second > 0 && spec.part_rows == 0;
  const bool turned = spec.turned != flipped;
  const int64_t inputs_at = spec.first_input + (flipped ? ref.inputs.first : 0);
  // Rows of A and values of a row of B that are the part's.
  const Segments own = {{part * spec.rank, spec.rank}};
  const int64_t b_rows = spec.by_part ? tensors.record(spec.b).rows() / n : 0;
  const int64_t b_first = spec.by_part ? 0 : part, b_step = spec.by_part ? 1 : n;
  Segments outputs = outputs_of(spec, ref, ref.transposed ? 0 : skipped, rows);
  Sides made = {.a = {.name = spec.a, .rows = own},
                .b = {.name = spec.b, .rows = outputs, .first = b_first, .inner_step = b_step},
                .is_flipped = turned,
                .outputs = outputs,
                .step = ref.step * spec.step};
  made.b.step = made.step;
  if (turned) {
    made.outputs = {{inputs_at, cols}};
    made.step = 1;
  }
  if (spec.by_part) {
    if (outputs.empty()) made.b.rows = {{0, rows}};
    for (auto& [start, count] : made.b.rows) start += part * b_rows;
  }
  if (!turned) return made;
  made.a = {.name = spec.b,
            .across = true,
            .rows = {{b_first, spec.rank}},
            .step = b_step,
            .first = inputs_at + part * b_rows};
  made.b = {.name = spec.a,
            .across = true,
            .rows = outputs,
            .step = ref.step * spec.step,
            .first = part * spec.rank};
  return made;
}

}  // namespace pyflow
