"""Rotary frequencies from GGUF metadata, with every scaling law folded in."""

from __future__ import annotations

import math

from ..errors import FormatError
from ..spec import Rope
from .metadata import Metadata


def frequencies(base: float, n_dims: int) -> list[float]:
    """``base ** (-2i / n_dims)`` for each of the n_dims / 2 pairs (Su et al. 2021)."""
    return [base ** (-2.0 * i / n_dims) for i in range(n_dims // 2)]


def rope(m: Metadata, *, head_dim: int, interleaved: bool) -> Rope:
    """The rope of a model's metadata: base, partial dimensions, none, linear or YaRN scaling, and
    per-pair divisors (Llama 3) from the tensor ``rope_freqs.weight``.
    """
    base = m.number("rope.freq_base", 10000.0)
    n_dims = m.integer("rope.dimension_count", head_dim)
    if base <= 0 or n_dims % 2 or n_dims > head_dim:
        raise FormatError(
            f"{m.source}: {m.architecture}.rope: expected a positive base and an even number of "
            f"dimensions up to {head_dim}, found base {base}, {n_dims} dimensions"
        )
    inv_freq = frequencies(base, n_dims)
    if m.has_tensor("rope_freqs.weight"):
        divisors = m.f32_tensor("rope_freqs.weight", n_dims // 2)
        inv_freq = [f / float(d) for f, d in zip(inv_freq, divisors, strict=True)]
    # Files without a type but with a factor mean linear scaling.
    factor = m.number("rope.scaling.factor", m.number("rope.scale_linear", 1.0))
    kind = m.text("rope.scaling.type", "linear" if factor != 1.0 else "none")
    m.refuse_unless("rope.scaling.type", kind, "none", "linear", "yarn")
    if factor <= 0:
        raise FormatError(
            f"{m.source}: {m.architecture}.rope.scaling.factor: expected a positive number, "
            f"found {factor}"
        )
    magnitude = m.number("rope.scaling.attn_factor", 1.0)
    if kind == "linear":
        inv_freq = [f / factor for f in inv_freq]
    elif kind == "yarn":
        n_ctx = m.integer("rope.scaling.original_context_length", m.integer("context_length"))
        inv_freq = yarn(inv_freq, base=base, n_dims=n_dims, n_ctx=n_ctx, factor=factor)
        magnitude *= 1.0 + 0.1 * math.log(factor)
    return Rope(tuple(inv_freq), magnitude, interleaved)


def yarn(
    inv_freq: list[float], *, base: float, n_dims: int, n_ctx: int, factor: float
) -> list[float]:
    """YaRN's blend of interpolated and original frequencies (Peng et al. 2023, section 3.2).

    Pairs that turn more than 32 times over the original context keep their frequency, those that
    turn less than once are slowed by `factor`, with a linear ramp between.
    """

    def pair_of(turns: float) -> float:
        return n_dims * math.log(n_ctx / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(0, math.floor(pair_of(32.0)))
    high = min(n_dims - 1, math.ceil(pair_of(1.0)))
    blended = []
    for i, f in enumerate(inv_freq):
        keep = 1.0 - min(1.0, max(0.0, (i - low) / max(0.001, high - low)))
        blended.append(f / factor * (1.0 - keep) + f * keep)
    return blended
