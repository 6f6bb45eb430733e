// Formats whose products take f32 activations: plain floats, and blocks of codes that stand for
// floats, with one scale.
//
// A block of such codes is a unit of a tile: sixteen scales, one a row, then lines of 64 bytes with
// kStep consecutive k of all sixteen rows. Beside Block, pack and unpack a format of them has
//
//   scale<S>(unit)             what codes of the sixteen rows are multiplied by
//   weights<S>(line, s, w)     kStep times sixteen weights, each a code times s, rounded once
//
// so a product is that of the same weights in F32, bit for bit.
#pragma once

namespace pyflow::quant {

template <class Format>
concept ScaledFloats = requires { Format::kStep; };

template <class Format>
concept FloatInputs = Format::kBlock == 1 || ScaledFloats<Format>;

}  // namespace pyflow::quant
