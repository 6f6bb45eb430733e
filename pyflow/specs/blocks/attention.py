"""Grouped-query attention."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, Self

from pyflow.errors import FormatError
from pyflow.specs.block import Block, BlockContext, Want
from pyflow.specs.blocks.norm import NormValues
from pyflow.specs.language.shapes import BlockName, Param
from pyflow.specs.language.values import Choice, Flag, Number, Text, Whole
from pyflow.specs.parts import NormType, Ref, Register, Rope


@dataclass(frozen=True, slots=True)
class Attention(Block):
    """Grouped-query attention over the KV cache; rope is an index into `ModelSpec.ropes`.

    mask: full is attention of encoders: a row sees its whole text, and there is no cache. chunk: a
    row sees what is before it in its own chunk of `window` positions.
    kv_from: encoder is attention to all of a source, which an encoder has read; k and v take its
    rows. kv_layer: the keys and values of an earlier layer, which has the same heads; then there is
    no k and no v. kv_at, kv_given: of stages with a part of the layers, see `ModelSpec.stage`.
    k and v may be one matrix: values are keys before their norm and rope.

    q: (n_heads * head_dim, n_embd); k: (n_kv_heads * head_dim, n_embd).
    v: (n_kv_heads * value_dim, n_embd); o: (n_embd, n_heads * value_dim). value_dim: None is
    head_dim.
    window: a position sees the `window` newest positions, itself included; 0 = all of them. With
    mask full it sees those less than `window` away, on both sides.
    softcap: scores s become softcap * tanh(s / softcap); 0 = none.
    alibi: one slope per query head, or none; scores (scaled, capped) get slope * -distance.
    q_norm, k_norm: after the biases, before the rope. norm_span ``head``: over each head; of
    head_dim weights for all heads or of head_dim for each, which may lie in a tensor for each.
    ``all``: over all heads together.
    plain_norms: q_norm and k_norm have no weights. v_norm: values of each head are divided by
    their root mean square.
    temperature: queries are multiplied by 1 + beta * ln(1 + floor((position + offset) / length)).
    sinks: (n_heads,), a score for each head that joins the softmax without a value, unscaled.
    relative: (n_buckets, n_heads), added to scores by the bucket of the distance; buckets has those
    of -n to n, key less query.
    """

    q: Ref
    k: Ref | None
    v: Ref | None
    o: Ref
    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    rope: int | None
    window: int = 0
    softcap: float = 0.0
    q_bias: Ref | None = None
    k_bias: Ref | None = None
    v_bias: Ref | None = None
    q_norm: Ref | tuple[Ref, ...] | None = None
    k_norm: Ref | tuple[Ref, ...] | None = None
    norm_eps: float = 0.0
    o_bias: Ref | None = None
    q_norm_bias: Ref | tuple[Ref, ...] | None = None
    k_norm_bias: Ref | tuple[Ref, ...] | None = None
    norm_type: NormType = "rms"
    norm_span: Literal["head", "all"] = "head"
    alibi: tuple[float, ...] = ()
    value_dim: int | None = None
    mask: Literal["full", "chunk"] | None = None
    kv_from: Literal["encoder"] | None = None
    sinks: Ref | None = None
    relative: Ref | None = None
    n_buckets: int | None = None
    buckets: tuple[int, ...] = ()
    temperature_beta: float | None = None
    temperature_length: int | None = None
    temperature_offset: int | None = None
    plain_norms: Literal[True] | None = None
    v_norm: Literal[True] | None = None
    kv_layer: int | None = None
    kv_at: int | None = None
    kv_given: Literal[True] | None = None

    kind: ClassVar = "attention"
    keys: ClassVar = {
        "n_heads": Param(Whole(most=1 << 16)),
        "n_kv_heads": Param(Whole(most=1 << 16)),
        "head_dim": Param(Whole(most=1 << 16)),
        "value_dim": Param(Whole(most=1 << 16), None),
        "scale": Param(Number()),
        "mask": Param(Choice.of("causal", "full", "chunk"), "causal"),
        "window": Param(Whole(least=0, most=1 << 30), 0),
        "softcap": Param(Number(least=0), 0.0),
        "kv_from": Param(Choice.of("self", "encoder"), "self"),
        "kv_layer": Param(Whole(least=-1, most=1 << 16), -1),
        "qkv_bias": Param(Flag(auto=True), False),
        "o_bias": Param(Flag(auto=True), False),
        "sinks": Param(Flag(auto=True), False),
        "qk_norm": BlockName("norm"),
        "qk_normed": Param(Flag(), True),
        "v_norm": BlockName("norm"),
        "qk_norm_span": Param(Choice.of("head", "all"), "head"),
        "rope": Param(Text("the name of a rope, or none"), "none"),
        "alibi": Param(Number(least=0), 0.0),
        "relative": {
            "n_buckets": Param(Whole(most=1 << 16)),
            "max_distance": Param(Whole(least=2, most=1 << 16)),
            "bidirectional": Param(Flag(), False),
        },
        "temperature": {
            "beta": Param(Number(least=0, most=100)),
            "length": Param(Whole(most=1 << 30)),
            "offset": Param(Whole(least=0, most=1 << 30), 0),
        },
    }
    roles: ClassVar = {
        "q": "attn_q",
        "k": "attn_k",
        "v": "attn_v",
        "o": "attn_output",
        "q_norm": "attn_q_norm",
        "k_norm": "attn_k_norm",
        "relative": "attn_rel_b",
        "sinks": "attn_sinks",
    }
    fused: ClassVar = "attn_qkv"

    @classmethod
    def make(cls, at: BlockContext, source: Register, to: Register) -> Self:
        n_heads, n_kv_heads = at.value("n_heads"), at.value("n_kv_heads")
        if n_heads % n_kv_heads:
            raise FormatError(
                f"{at.where}: expected queries of a multiple of {n_kv_heads} heads, those of keys, "
                f"found {n_heads}"
            )
        mask, kv_from = at.value("mask"), at.value("kv_from")
        if kv_from == "encoder":
            _check_cross(at)
        head_dim, value_dim = at.value("head_dim"), at.value("value_dim")
        if value_dim == head_dim:
            value_dim = None
        kv_layer = None if (layer := at.value("kv_layer")) < 0 else layer
        wants = _wants(at, (n_heads, n_kv_heads), (head_dim, value_dim or head_dim))
        normed = {"q_norm": n_heads, "k_norm": n_kv_heads}
        if kv_layer is not None:
            if mask == "full" or kv_from == "encoder":
                raise FormatError(f"{at.where}: expected kv_layer only where a text is written")
            _drop_keys(at, wants, head_dim)
            del normed["k_norm"]
        norm = _add_norms(wants, at, normed, head_dim)
        if mask == "chunk" and not at.value("window"):
            raise FormatError(f"{at.where}: expected a window, the size of chunks, found none")
        n_buckets, buckets = None, tuple[int, ...]()
        if (relative := at.inner("relative")) is not None:
            n_buckets = relative.value("n_buckets")
            wants["relative"] = Want((n_buckets, n_heads))
            buckets = _buckets(
                n_buckets, relative.value("max_distance"), relative.value("bidirectional")
            )
        return cls(
            source,
            to,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=head_dim,
            scale=at.value("scale"),
            rope=at.rope(at.value("rope"), head_dim),
            window=at.value("window"),
            softcap=at.value("softcap"),
            norm_eps=norm.eps if norm else 0.0,
            norm_type=norm.type if norm else "rms",
            norm_span=at.value("qk_norm_span"),
            alibi=_slopes(n_heads, at.value("alibi")),
            value_dim=value_dim,
            mask=None if mask == "causal" else mask,
            kv_from="encoder" if kv_from == "encoder" else None,
            n_buckets=n_buckets,
            buckets=buckets,
            plain_norms=True if norm and norm.is_plain else None,
            v_norm=None if kv_layer is not None else _value_norm(at, value_dim or head_dim, norm),
            kv_layer=kv_layer,
            **_temperature(at),
            **{"k": None, "v": None, **at.bind(wants)},
        )

    def words(self, ropes: Sequence[Rope], /) -> Iterator[str]:
        yield f"attention: {self.n_heads} heads of {self.head_dim}, {self.n_kv_heads} of keys"
        yield from [f"values of {self.value_dim}"] if self.value_dim else []
        yield from ["values are keys"] if self.v is not None and self.v == self.k else []
        yield from ["over the whole text"] if self.mask == "full" else []
        yield from (
            ["over cells of layer " + str(self.kv_layer)] if self.kv_layer is not None else []
        )
        yield from ["over the source"] if self.kv_from else []
        yield from [f"biases in {self.n_buckets} buckets of distance"] if self.n_buckets else []
        if self.rope is not None:
            rope = ropes[self.rope]
            n, order = 2 * len(rope.inv_freq), "interleaved" if rope.interleaved else "halves"
            yield f"rope {self.rope} of {n} ({order})"
        yield from ["ALiBi"] if self.alibi else []
        yield from ["sinks"] if self.sinks else []
        kind = "chunks of" if self.mask == "chunk" else "window"
        yield from [f"{kind} {self.window}"] if self.window else []
        yield from [f"temperature {self.temperature_beta:g}"] if self.temperature_beta else []
        yield from [f"capped at {self.softcap:g}"] if self.softcap else []
        if self.q_norm or self.k_norm or self.plain_norms:
            yield f"{self.norm_type} norms of {'all heads' if self.norm_span == 'all' else 'heads'}"
        yield from ["norms of values"] if self.v_norm else []
        yield from ["biases"] if self.q_bias or self.o_bias else []


def _check_cross(at: BlockContext) -> None:
    """FormatError: attention to a source asks for what only a text of its own has."""
    asked = {
        "mask full": at.value("mask") == "full",
        "a window": at.value("window") > 0,
        "a temperature": at.inner("temperature") is not None,
        "a rope": at.value("rope") != "none",
        "ALiBi": at.value("alibi") > 0,
        "biases by distance": at.inner("relative") is not None,
    }
    if found := [name for name, is_asked in asked.items() if is_asked]:
        raise FormatError(
            f"{at.where}: expected attention to a source (kv_from encoder) without positions, "
            f"found {', '.join(found)}"
        )


def _drop_keys(at: BlockContext, wants: dict[str, Want], head_dim: int) -> None:
    """Takes keys and values out of `wants`. Files may have theirs, which nothing reads."""
    idle = {role: wants.pop(role) for role in list(wants) if role[0] in "kv"}
    idle |= {"k_norm": Want((head_dim,))}
    at.bind(
        {role: replace(want, need="auto" if want.need else False) for role, want in idle.items()}
    )


def _temperature(at: BlockContext) -> dict[str, Any]:
    """The fields of a temperature; none where it has no effect."""
    given = at.inner("temperature")
    if given is None or not given.value("beta"):
        return {}
    return {f"temperature_{key}": given.value(key) for key in ("beta", "length", "offset")}


def _wants(at: BlockContext, heads: tuple[int, int], dims: tuple[int, int]) -> dict[str, Want]:
    """Matrices and biases. heads: of queries, and of keys and values. dims: of keys, of values."""
    (n_heads, n_kv_heads), (key_dim, value_dim) = heads, dims
    n_q, n_k, n_v = n_heads * key_dim, n_kv_heads * key_dim, n_kv_heads * value_dim
    bias = at.value("qkv_bias")
    return {
        "q": Want((n_q, at.n_embd)),
        "k": Want((n_k, at.n_embd)),
        "v": Want((n_v, at.n_embd)),
        "o": Want((at.n_embd, n_heads * value_dim)),
        "q_bias": Want((n_q,), bias),
        "k_bias": Want((n_k,), bias),
        "v_bias": Want((n_v,), bias),
        "o_bias": Want((at.n_embd,), at.value("o_bias")),
        "sinks": Want((n_heads,), at.value("sinks")),
    }


def _add_norms(
    wants: dict[str, Want], at: BlockContext, heads: dict[str, int], head_dim: int
) -> NormValues | None:
    """Adds the norms of queries and keys, by their roles and numbers of heads; gives the last."""
    norm_at, is_per_head = at.other("qk_norm"), at.value("qk_norm_span") == "head"
    if norm_at is None or not at.value("qk_normed"):
        return None
    for role, n in heads.items():
        sizes = (head_dim, n * head_dim) if is_per_head else (n * head_dim,)
        norm = NormValues.of(norm_at, *sizes)
        n_heads = n if is_per_head else 0
        wants[role] = replace(norm.weight, n_heads=n_heads)
        wants[f"{role}_bias"] = replace(norm.bias, n_heads=n_heads)
    return norm


def _value_norm(at: BlockContext, value_dim: int, norm: NormValues | None) -> Literal[True] | None:
    """True: values are normed, RMS without weights, by the eps of the norm of keys."""
    if (norm_at := at.other("v_norm")) is None:
        return None
    own = NormValues.of(norm_at, value_dim)
    if not own.is_plain or norm is None or own.eps != norm.eps:
        raise FormatError(
            f"{at.where}: v_norm: expected an RMS norm without weights, of the eps of qk_norm"
        )
    return True


def _slopes(n_heads: int, max_bias: float) -> tuple[float, ...]:
    """ALiBi's slope of each head (Press et al. 2022); those past a power of two lie between."""
    if not max_bias:
        return ()
    n = 1 << (n_heads.bit_length() - 1)
    even, odd = 2.0 ** (-max_bias / n), 2.0 ** (-max_bias / 2 / n)
    return tuple(even ** (h + 1) if h < n else odd ** (2 * (h - n) + 1) for h in range(n_heads))


def _buckets(n_buckets: int, max_distance: int, both_ways: bool) -> tuple[int, ...]:
    """The bucket of each distance, key less query, from -max_distance to max_distance: one each for
    small ones, then by logarithm (Raffel et al. 2020, section 2.1). both_ways: later keys take the
    upper half; otherwise they are like the query's own place."""
    half = n_buckets // 2 if both_ways else n_buckets
    exact = half // 2

    def bucket(distance: int) -> int:
        if distance < exact or exact < 1:
            return min(distance, half - 1)
        share = math.log(distance / exact) / math.log(max_distance / exact)
        return min(exact + int(share * (half - exact)), half - 1)

    def of(ahead: int) -> int:
        later = half if both_ways and ahead > 0 else 0
        return later + bucket(abs(ahead) if both_ways else max(-ahead, 0))

    return tuple(of(ahead) for ahead in range(-max_distance, max_distance + 1))
