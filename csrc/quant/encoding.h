// How a format is encoded, as its header says it: `using Search = ...` names a search for scales
// and codes, with the format's numbers, and `assemble` packs what the search found into the file's
// bits. The searches themselves are defined in encode/search/. A format of blocks without a search
// is only read.
#pragma once

#include <cstdint>

namespace pyflow::quant {

template <class Format>
concept Encodable = Format::kBlock == 1 || requires { typename Format::Search; };

// A block as a search leaves it.
struct Fields {
  uint16_t d = 0, m = 0;    // f16: scale and minimum; in super-blocks the units of the fields below
  uint8_t scales[16] = {};  // of the sub-blocks, counted from the least
  uint8_t minimums[16] = {};  // of the sub-blocks
  uint8_t q[256] = {};        // code of each weight: its place in the grid, counted from the least
};

// Grids, i.e. the values that a code stands for: the integers Low .. High; Table[i] - Offset, i <
// N.
template <int Low, int High>
struct Integers;
template <const int8_t* Table, int N, int Offset = 0>
struct Points;

// Blocks of N weights. Symmetric: x ~ d * grid value. Affine: x ~ d * q + m with q in 0 .. Max.
// Least, Most, Steps: the targets that are tried for the largest weight (quant/encoding.h).
template <class Grid, int N, int Least, int Most, int Steps>
struct SymmetricBlocks;
template <int Max, int N>
struct AffineBlocks;

// Super-blocks of Subs sub-blocks of N weights, whose scales are integers Low .. High times d; and
// for affine ones scales and minimums 0 .. High times d and m.
template <class Grid, int N, int Subs, int Low, int High, int Least, int Most, int Steps>
struct SymmetricSuperBlocks;
template <int Max, int N, int Subs, int High>
struct AffineSuperBlocks;

}  // namespace pyflow::quant
