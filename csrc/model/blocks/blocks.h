// Shared by the files of this folder: the factories, and how rows are dealt out.
#pragma once

#include <algorithm>

#include "model/block.h"

namespace pyflow {

std::unique_ptr<Block> make_norm(const BlockSpec&, BlockContext&);
std::unique_ptr<Block> make_attention(const BlockSpec&, BlockContext&);
std::unique_ptr<Block> make_ffn(const BlockSpec&, BlockContext&);
std::unique_ptr<Block> make_add(const BlockSpec&, BlockContext&);

inline int64_t rows_per_piece(const Step& s, const Team& team) {
  return std::max<int64_t>(1, s.n_rows / (4 * team.size()));
}

}  // namespace pyflow
