// MXFP4 (quant/formats/block/mxfp4.h) as safetensors files of gpt-oss have it, two tensors for one:
//
//   NAME_blocks  U8 (.., n, 16)   n blocks of a row; weight 2i of a block is the low nibble of byte
//                                 i, weight 2i + 1 the high one
//   NAME_scales  U8 (.., n)       the e of each block
//
// Here NAME_blocks is MXFP4 (.., 32 n), and NAME_scales is not listed. Blocks are put together when
// they are read: only bytes move.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "files/checkpoint.h"

namespace pyflow {

// Rows of per_row blocks each, from nibbles and scales as above.
std::shared_ptr<const MadeRows> mx_rows(std::span<const uint8_t> blocks,
                                        std::span<const uint8_t> scales, int64_t per_row);

// The checkpoint with its pairs joined; itself if it has none.
std::shared_ptr<Checkpoint> join_mx_pairs(std::shared_ptr<Checkpoint> of);

}  // namespace pyflow
