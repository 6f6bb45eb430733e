#include "model/group/group.h"

#include <algorithm>
#include <utility>

#include "core/errors.h"

namespace pyflow {

Group::Group(std::shared_ptr<Link> link)
    : link_(std::move(link)),
      n_floats_(static_cast<size_t>(link_->size())),
      starts_(static_cast<size_t>(link_->size())),
      in_(static_cast<size_t>(link_->size())) {}

void Group::check() const {
  if (failed()) throw LinkError(failure_);
}

void Group::lay_out(std::span<const int64_t> n_floats) {
  int64_t total = 0;
  for (size_t m = 0; m < starts_.size(); ++m) {
    starts_[m] = total;
    total += n_floats[m];
  }
  if (std::ssize(memory_) < total) memory_.resize(static_cast<size_t>(total));
}

void Group::exchange(std::span<const int64_t> n_floats) {
  const auto bytes = [&](size_t m) {
    return std::span(reinterpret_cast<uint8_t*>(floats(static_cast<int64_t>(m))),
                     static_cast<size_t>(n_floats[m]) * sizeof(float));
  };
  for (size_t m = 0; m < in_.size(); ++m) in_[m] = bytes(m);
  try {
    stopping_ = link_->exchange(RoundKind::Gather, asked_,
                                bytes(static_cast<size_t>(link_->number())), in_);
  } catch (const LinkError& error) {
    failure_ = error.what();
    stopping_ = true;
  }
}

void Group::gather(std::span<const SharedRows> all) {
  if (failed()) return;
  std::ranges::fill(n_floats_, 0);
  for (const SharedRows& each : all)
    for (size_t m = 0; m < n_floats_.size(); ++m)
      n_floats_[m] += each.n_rows * each.columns->all[m].size();
  lay_out(n_floats_);
  // copy(a member's columns of a row, where they lie among its floats)
  const auto for_parts = [&](int64_t member, const auto& copy) {
    float* at = floats(member);
    for (const SharedRows& each : all) {
      const Share own = each.columns->all[static_cast<size_t>(member)];
      for (int64_t r = 0; r < each.n_rows && own.size() > 0; ++r, at += own.size())
        copy(each.rows + r * each.stride + own.begin, at, own.size());
    }
  };
  for_parts(link_->number(),
            [](const float* row, float* to, int64_t n) { std::copy_n(row, n, to); });
  exchange(n_floats_);
  for (int64_t m = 0; m < link_->size() && !failed(); ++m)
    if (m != link_->number())
      for_parts(m, [](float* row, const float* from, int64_t n) { std::copy_n(from, n, row); });
}

void Group::gather_rows(float* rows, int64_t stride, int64_t n, std::span<const int64_t> owners) {
  if (failed()) return;
  std::ranges::fill(n_floats_, 0);
  for (const int64_t owner : owners) n_floats_[static_cast<size_t>(owner)] += n;
  lay_out(n_floats_);
  const auto for_rows = [&](int64_t member, const auto& copy) {
    float* at = floats(member);
    for (size_t r = 0; r < owners.size(); ++r)
      if (owners[r] == member) {
        copy(rows + static_cast<int64_t>(r) * stride, at);
        at += n;
      }
  };
  for_rows(link_->number(), [n](const float* row, float* to) { std::copy_n(row, n, to); });
  exchange(n_floats_);
  for (int64_t m = 0; m < link_->size() && !failed(); ++m)
    if (m != link_->number())
      for_rows(m, [n](float* row, const float* from) { std::copy_n(from, n, row); });
}

}  // namespace pyflow
