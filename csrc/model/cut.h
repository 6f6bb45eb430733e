// Where the rows of a matrix are cut among members that share a layer: devices of a group, or ranks.
//
// A row of a matrix gives one column of what it multiplies to, by a chain over k of its own. So rows
// may be cut anywhere, and k never: the bits are those of one member. Attention is cut by whole kv
// heads, which take the query heads that share them, so cells stay where they are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/errors.h"
#include "kernels/table.h"

namespace pyflow {

// Which member of a group it is, of so many that share the rows of each matrix.
struct Membership {
  int64_t number = 0, of = 1;
  // Of each member, in any unit: shares are in proportion. Empty: all are alike.
  std::vector<int64_t> speeds = {};
  bool alone() const { return of == 1; }
};
inline constexpr int64_t kMostSpeed = 1'000'000;

// Units of a member: neighbours, from `begin` on.
struct Share {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

// Of n units for `of` members those of member m, with at least so many for each: 7 units of members
// with speeds 2, 1, 1 are 3, 2 and 2.
inline Share share_of(int64_t n, int64_t m, int64_t of, std::span<const int64_t> speeds,
                      int64_t least = 0) {
  int64_t total = of, before = 0, begin = 0, end = 0;
  if (!speeds.empty()) {
    total = 0;
    for (const int64_t speed : speeds) total += speed;
  }
  for (int64_t i = 0; i <= m; ++i) {
    before += speeds.empty() ? 1 : speeds[static_cast<size_t>(i)];
    begin = end;
    end = std::clamp(n * before / total, begin + least, n - (of - 1 - i) * least);
  }
  return {begin, end};
}

// Rows of a matrix, or columns of its results, in units that stay together.
struct Cut {
  int64_t n;     // rows
  int64_t unit;  // of a unit; the last one may have fewer

  // In tiles, for what needs no more.
  static Cut tiles(int64_t n) { return {n, kTileRows}; }
  // Of nobody's: each member has all rows.
  static Cut whole(int64_t n) { return {n, 0}; }

  int64_t units() const { return unit == 0 ? 1 : (n + unit - 1) / unit; }
  // The units of a member of so many, as even as can be; 7 units of 2 members are 3 and 4.
  Share units_of(int64_t member, int64_t n_members) const {
    if (unit == 0) return {0, 1};
    return {units() * member / n_members, units() * (member + 1) / n_members};
  }
  Share rows_of(int64_t member, int64_t n_members) const {
    if (unit == 0) return {0, n};
    const Share own = units_of(member, n_members);
    return {own.begin * unit, std::min(n, own.end * unit)};
  }
};

// Rows or columns of all members of a group, and of the one that is here.
struct Shares {
  Share own{0, 0};
  std::vector<Share> all;

  Shares() = default;
  Shares(const Cut& cut, const Membership& member) {
    for (int64_t m = 0; m < member.of; ++m) {
      const Share units = share_of(cut.units(), m, member.of, member.speeds);
      all.push_back(
          {std::min(cut.n, units.begin * cut.unit), std::min(cut.n, units.end * cut.unit)});
    }
    own = all[static_cast<size_t>(member.number)];
  }
};

// Units of ranks: inner values of FFNs, so that scales of activations stay with their values;
// vocabulary rows.
inline constexpr int64_t kInnerUnit = 32, kVocabUnit = 128;

// Heads of a member. With at least as many kv heads as members each has whole ones, and the query
// heads that share them. Otherwise the members of a kv head split its query heads, and each has the
// cells: 3 members of 8 heads and 2 kv heads have 0 to 3 of kv head 0, 4 and 5, 6 and 7 of kv head 1.
struct HeadShare {
  Share kv, q;
  bool first;  // of those that have the same kv heads

  // Of member m, whichever one is here. ShapeError if there are too few heads.
  HeadShare(int64_t n_heads, int64_t n_kv_heads, const Membership& member, int64_t m)
      : kv{}, q{}, first(true) {
    const int64_t of = member.of, group = n_heads / n_kv_heads;
    const std::span<const int64_t> speeds = member.speeds;
    if (of <= n_kv_heads) {
      kv = share_of(n_kv_heads, m, of, speeds, 1);
      q = {kv.begin * group, kv.end * group};
      return;
    }
    int64_t head = 0;
    while (of * (head + 1) / n_kv_heads <= m) ++head;
    const int64_t begin = of * head / n_kv_heads, n = of * (head + 1) / n_kv_heads - begin;
    if (n > group)
      throw ShapeError("attention: expected a head for each of " + std::to_string(of) +
                       " members, found " + std::to_string(n_heads) + " heads, " +
                       std::to_string(n_kv_heads) + " kv heads; use fewer members");
    const auto at = static_cast<size_t>(begin);
    const Share part =
        share_of(group, m - begin, n,
                 speeds.empty() ? speeds : speeds.subspan(at, static_cast<size_t>(n)), 1);
    kv = {head, head + 1};
    q = {head * group + part.begin, head * group + part.end};
    first = m == begin;
  }
};

}  // namespace pyflow
