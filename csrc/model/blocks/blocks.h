// The factories of the blocks in this folder: make_<kind> for each line of blocks.def.
#pragma once

#include "model/blocks/block.h"

namespace pyflow {

#define PYFLOW_BLOCK(kind, where) \
  std::unique_ptr<Block> make_##kind(const BlockSpec&, BlockContext&);
#include "model/blocks/blocks.def"
#undef PYFLOW_BLOCK

}  // namespace pyflow
