#include "model/group/group.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "core/errors.h"

namespace pyflow {
namespace {

constexpr size_t kLine = 64;

}  // namespace

Group::Group(std::shared_ptr<Link> link)
    : link_(std::move(link)),
      nbytes_(static_cast<size_t>(link_->size())),
      starts_(static_cast<size_t>(link_->size())),
      in_(static_cast<size_t>(link_->size())) {}

void Group::check() const {
  if (failed()) throw LinkError(failure_);
}

void Group::lay_out() {
  size_t total = 0;
  for (size_t m = 0; m < starts_.size(); ++m) {
    starts_[m] = total;
    total += (nbytes_[m] + kLine - 1) / kLine * kLine;
  }
  if (memory_.size() < total) memory_.resize(total);
}

void Group::lay_out(std::span<const SharedRows> all) {
  std::ranges::fill(nbytes_, 0);
  for (const SharedRows& each : all)
    for (size_t m = 0; m < nbytes_.size(); ++m) nbytes_[m] += static_cast<size_t>(each.nbytes(m));
  lay_out();
}

void Group::begin(const KernelTable& kernels, const SharedRows& rows) {
  if (failed()) return;
  const std::array halves = {rows.only(Half::First), rows.only(Half::Second)};
  lay_out(halves);
  pack(kernels, halves, 0, rows.n_rows);
  begun_ = true;
  link_->begin(asked_, nbytes_[number()],
               {at(number()), static_cast<size_t>(halves[0].nbytes(number()))});
}

void Group::exchange() {
  begun_ = false;
  for (size_t m = 0; m < in_.size(); ++m) in_[m] = {at(m), nbytes_[m]};
  try {
    stopping_ = link_->exchange(RoundKind::Gather, asked_, in_[number()], in_);
  } catch (const LinkError& error) {
    failure_ = error.what();
    stopping_ = true;
  }
}

template <class Take>
void Group::with_row(std::span<const SharedRows> all, int64_t row, size_t member, Take&& take) {
  uint8_t* from = at(member);
  for (const SharedRows& each : all) {
    if (row < each.n_rows) return take(each, row, from + each.nbytes_before(member, row));
    row -= each.n_rows;
    from += each.nbytes(member);
  }
}

void Group::pack(const KernelTable& kernels, std::span<const SharedRows> all, int64_t begin,
                 int64_t end) {
  for (int64_t i = begin; i < end; ++i)
    with_row(all, i, number(), [&](const SharedRows& rows, int64_t row, uint8_t* to) {
      rows.pack(kernels, number(), row, to);
    });
}

void Group::unpack(std::span<const SharedRows> all, int64_t begin, int64_t end) {
  for (int64_t i = begin; i < end; ++i)
    for (size_t m = 0; m < in_.size(); ++m)
      if (m != number())
        with_row(all, i, m, [m](const SharedRows& rows, int64_t row, const uint8_t* from) {
          rows.unpack(m, row, from);
        });
}

void Group::gather(const Step& step, Team& team, std::span<const SharedRows> all) {
  int64_t n_rows = 0;
  for (const SharedRows& each : all) n_rows += each.n_rows;
  if (team.rank() == 0 && !failed()) {
    std::ranges::fill(nbytes_, 0);
    for (const SharedRows& each : all)
      for (size_t m = 0; m < nbytes_.size(); ++m) nbytes_[m] += static_cast<size_t>(each.nbytes(m));
    lay_out();
  }
  if (step.own_rows) {  // a row or a few cost less than the barriers
    if (team.rank() == 0 && !failed()) {
      pack(step.kernels, all, begun_ ? all[0].n_rows : 0, n_rows);
      exchange();
      if (!failed()) unpack(all, 0, n_rows);
    }
    return team.barrier();
  }
  team.barrier();
  if (failed()) return;
  const int64_t grain = std::max<int64_t>(1, n_rows / (4 * team.size()));
  const int64_t first = begun_ ? all[0].n_rows : 0;
  team.for_each(n_rows - first, grain, [&](int64_t begin, int64_t end) {
    pack(step.kernels, all, first + begin, first + end);
  });
  if (team.rank() == 0) exchange();
  team.barrier();
  if (failed()) return;
  team.for_each(n_rows, grain, [&](int64_t begin, int64_t end) { unpack(all, begin, end); });
}

void Group::gather_rows(float* rows, int64_t stride, int64_t n, std::span<const int64_t> owners) {
  if (failed()) return;
  const size_t nbytes = static_cast<size_t>(n) * sizeof(float);
  std::ranges::fill(nbytes_, 0);
  for (const int64_t owner : owners) nbytes_[static_cast<size_t>(owner)] += nbytes;
  lay_out();
  // move(a member's row, where it lies among its bytes)
  const auto for_rows = [&](size_t member, const auto& move) {
    uint8_t* there = at(member);
    for (size_t r = 0; r < owners.size(); ++r)
      if (static_cast<size_t>(owners[r]) == member) {
        move(rows + static_cast<int64_t>(r) * stride, there);
        there += nbytes;
      }
  };
  for_rows(number(), [nbytes](const float* row, uint8_t* to) { std::memcpy(to, row, nbytes); });
  exchange();
  for (size_t m = 0; m < in_.size() && !failed(); ++m)
    if (m != number())
      for_rows(m, [nbytes](float* row, const uint8_t* from) { std::memcpy(row, from, nbytes); });
}

}  // namespace pyflow
