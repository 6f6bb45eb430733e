#include "model/group/parallel.h"

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "model/blocks/branch.h"
#include "model/stage.h"

namespace pyflow {
namespace {

constexpr int64_t kColumns = 512;  // of a row, added up at once

// Branches of one residual stream; norm: what the second one sees, or null.
struct Branches {
  std::unique_ptr<Block> first, norm, second;
  std::array<float, 2> scales;
  bool second_is_added_first;
};

class Parallel final : public Block {
 public:
  explicit Parallel(Branches branches)
      : of_(std::move(branches)),
        first_(dynamic_cast<const Branch&>(*of_.first)),
        second_(dynamic_cast<const Branch&>(*of_.second)) {}

  bool adds() const override { return true; }

  ScratchNeeds needs(CacheType cells) const override {
    const ScratchNeeds a = first_.needs(cells), b = second_.needs(cells);
    ScratchNeeds all = a;
    all.at_least(b);
    all.floats_per_row = a.floats_per_row + b.floats_per_row;
    all.act_blocks_per_row += a.act_blocks_per_row + b.act_blocks_per_row;
    return all;
  }

  void forward(Step& s, Team& team) const override {
    const std::array<const float*, 2> values = branches(s, team);
    const Shares& columns = first_.outputs();
    // Threads with rows of their own read x while others write; each takes its rows afterwards.
    float* sums = s.own_rows ? const_cast<float*>(values[0]) : s.product_output(0);
    const int64_t pieces = (columns.own.size() + kColumns - 1) / kColumns;
    team.for_each(s.n_rows * pieces, std::max<int64_t>(1, s.n_rows * pieces / (4 * team.size())),
                  [&](int64_t begin, int64_t end) {
                    for (int64_t i = begin; i < end; ++i)
                      add(s, values, i / pieces * s.stride, i % pieces * kColumns, sums);
                  });
    gather(s, team, sums, s.stride, columns);
    if (s.own_rows) std::copy_n(sums, s.n_rows * s.stride, s.row_output(0));
  }

  std::vector<int64_t> rounds(const KernelTable& kernels, Regime regime) const override {
    std::vector<int64_t> all = first_.inner_rounds(kernels, regime);
    for (const int64_t nbytes : second_.inner_rounds(kernels, regime)) all.push_back(nbytes);
    all.push_back(first_.inner_nbytes(kernels, regime) + second_.inner_nbytes(kernels, regime));
    all.push_back(wire_nbytes(Form::F32, first_.outputs()));
    return all;
  }

 private:
  // Own columns of both outputs.
  std::array<const float*, 2> branches(Step& s, Team& team) const {
    // What is asked of these depends on no cells.
    const ScratchNeeds a = first_.needs(CacheType::F16), b = second_.needs(CacheType::F16);
    float* const temp = s.temp;
    ActBlock* const acts = s.shared_acts;
    // What one rounds for itself comes first; then what the two of them gather, which stays.
    s.temp = temp + s.n_rows * b.floats_per_row;
    s.shared_acts += s.n_rows * std::max(a.act_blocks_per_row, b.act_blocks_per_row);
    std::array<SharedRows, 2> in{};
    in[0] = first_.inner(s, team, false);
    s.temp = temp;
    s.shared_acts += s.n_rows * a.act_blocks_per_row;
    if (of_.norm) of_.norm->forward(s, team);
    in[1] = second_.inner(s, team, false);
    s.shared_acts = acts;
    gather(s, team, in);
    const float* one = first_.outer(s, team, in[0], false);
    return {one, second_.outer(s, team, in[1], false)};
  }

  // Of a row that begins at `row`, up to kColumns own columns from `column` on.
  void add(const Step& s, const std::array<const float*, 2>& values, int64_t row, int64_t column,
           float* sums) const {
    const Share& own = first_.outputs().own;
    const int64_t at = row + own.begin + column, n = std::min(kColumns, own.size() - column);
    float x[kColumns];
    std::copy_n(s.registers[0] + at, n, x);
    for (size_t i = 0; i < 2; ++i) {
      const size_t which = of_.second_is_added_first ? 1 - i : i;
      if (of_.scales[which] == 1)
        s.kernels.add(x, values[which] + at, n);
      else
        s.kernels.add_scaled(x, values[which] + at, of_.scales[which], n);
    }
    std::copy_n(x, n, sums + at);
  }

  Branches of_;
  const Branch &first_, &second_;
};

// Blocks from the first branch to the last sum, perhaps.
struct Found {
  size_t norm, second, sums, end;  // norm: that of the second branch, or `second`
};

// Whether blocks from `first` on are two branches and their sums.
bool are_branches(const std::vector<BlockSpec>& specs, const std::vector<PlacedBlock>& layer,
                  size_t first, Found& found) {
  const auto is_branch = [&](size_t i) {
    return i < layer.size() && dynamic_cast<const Branch*>(layer[i].block.get());
  };
  const auto text = [&](size_t i, const char* key) { return specs[i].text(key); };
  if (!is_branch(first)) return false;
  const std::string a = text(first, "output");
  found.norm = found.second = first + 1;
  const auto is_kind = [&](size_t i, const char* kind) {
    return i < specs.size() && specs[i].kind == kind;
  };
  if (is_kind(found.norm, "norm")) {
    if (text(found.norm, "input") != "x" || text(found.norm, "output") == a ||
        text(found.norm, "output") == "x")
      return false;
    ++found.second;
  }
  if (!is_branch(found.second) || !is_kind(found.second, "ffn")) return false;
  const std::string b = text(found.second, "output");
  found.sums = found.second + 1;
  found.end = found.sums + 2;
  if (a == "x" || b == "x" || a == b || text(found.second, "input") == a) return false;
  for (size_t i = found.sums; i < found.end; ++i)
    if (!is_kind(i, "add") || text(i, "output") != "x") return false;
  const std::string one = text(found.sums, "input"), other = text(found.sums + 1, "input");
  return (one == a && other == b) || (one == b && other == a);
}

}  // namespace

void join_branches(const std::vector<BlockSpec>& specs, std::vector<PlacedBlock>& layer) {
  std::vector<PlacedBlock> joined;
  for (size_t i = 0; i < layer.size(); ++i) {
    Found found{};
    if (!are_branches(specs, layer, i, found)) {
      joined.push_back(std::move(layer[i]));
      continue;
    }
    const bool swapped = specs[found.sums].text("input") != specs[i].text("output");
    std::array scales = {specs[found.sums].number("scale"), specs[found.sums + 1].number("scale")};
    if (swapped) std::swap(scales[0], scales[1]);
    PlacedBlock one{nullptr, layer[i].home, layer[i].first, 0, 0};
    for (size_t j = i; j < found.end; ++j) {
      one.reads |= layer[j].reads;
      one.writes |= layer[j].writes;
    }
    auto norm = found.norm < found.second ? std::move(layer[found.norm].block) : nullptr;
    one.block =
        std::make_unique<Parallel>(Branches{std::move(layer[i].block), std::move(norm),
                                            std::move(layer[found.second].block), scales, swapped});
    joined.push_back(std::move(one));
    i = found.end - 1;
  }
  layer = std::move(joined);
}

}  // namespace pyflow
