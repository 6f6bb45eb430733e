// Where the rows of a matrix are cut among members that share a layer: devices of a group, or ranks.
//
// A row of a matrix gives one column of what it multiplies to, by a chain over k of its own. So rows
// may be cut anywhere, and k never: the bits are those of one member. Attention is cut by whole kv
// heads, which take the query heads that share them, so cells stay where they are.
#pragma once

#include <algorithm>
#include <cstdint>

#include "quant/packed_tensor.h"

namespace pyflow {

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

}  // namespace pyflow
