// The factories of the blocks in this folder.
#pragma once

#include "model/block.h"

namespace pyflow {

std::unique_ptr<Block> make_norm(const BlockSpec&, BlockContext&);
std::unique_ptr<Block> make_attention(const BlockSpec&, BlockContext&);
std::unique_ptr<Block> make_ffn(const BlockSpec&, BlockContext&);
std::unique_ptr<Block> make_moe(const BlockSpec&, BlockContext&);
std::unique_ptr<Block> make_add(const BlockSpec&, BlockContext&);
std::unique_ptr<Block> make_positions(const BlockSpec&, BlockContext&);

}  // namespace pyflow
