// Attention and a feed-forward network side by side, x += s attention(h) + t ffn(h), in two rounds
// instead of four: members gather the inputs of both last products together, then sums of own
// columns.
#pragma once

#include <vector>

#include "model/spec.h"

namespace pyflow {

struct PlacedBlock;

// Puts such blocks of a layer, a norm between them perhaps, and the two sums behind them together.
// specs: of the blocks.
void join_branches(const std::vector<BlockSpec>& specs, std::vector<PlacedBlock>& layer);

}  // namespace pyflow
