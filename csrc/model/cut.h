// Where the rows of a matrix are cut among members that share a layer: devices of a group, or ranks.
//
// A row of a matrix gives one column of what it multiplies to, by a chain over k of its own. So rows
// may be cut anywhere, and k never: the bits are those of one member. Attention is cut by whole kv
// heads, which take the query heads that share them, so cells stay where they are.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "core/errors.h"
#include "kernels/table.h"

namespace pyflow {

// Which member of a group it is, of so many that share the rows of each matrix.
struct Membership {
  int64_t number = 0, of = 1;
  bool alone() const { return of == 1; }
};

// Units of a member: neighbours, from `begin` on.
struct Share {
  int64_t begin, end;
  int64_t size() const { return end - begin; }
};

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
  Shares(const Cut& cut, const Membership& member) : own(cut.rows_of(member.number, member.of)) {
    for (int64_t m = 0; m < member.of; ++m) all.push_back(cut.rows_of(m, member.of));
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

  // ShapeError if there are too few heads.
  HeadShare(int64_t n_heads, int64_t n_kv_heads, const Membership& member)
      : kv{}, q{}, first(true) {
    const auto [m, of] = member;
    const int64_t group = n_heads / n_kv_heads;
    if (of <= n_kv_heads) {
      kv = Cut{n_kv_heads, 1}.rows_of(m, of);
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
    const Share part = Cut{group, 1}.rows_of(m - begin, n);
    kv = {head, head + 1};
    q = {head * group + part.begin, head * group + part.end};
    first = m == begin;
  }
};

}  // namespace pyflow
