"""A model as data: layers as lists of atomic blocks, with the tensors that they use.

`architectures` builds a `ModelSpec` from a checkpoint's metadata; the extension runs it. The hidden
state of a token lives in three registers: ``x``, the residual stream, ``h``, the branch, and ``a``,
a second branch where attention and feed-forward run side by side. Only x goes from layer to layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeAlias

from pyflow.errors import ShapeError

Register: TypeAlias = Literal["x", "h", "a"]
NormType: TypeAlias = Literal["rms", "layer"]
Activation: TypeAlias = Literal["silu", "gelu", "gelu_tanh", "relu"]
"""gelu is the exact one, by erf; gelu_tanh its approximation by tanh."""


@dataclass(frozen=True, slots=True)
class Source:
    """A matrix or vector cut out of a tensor of the checkpoint that may hold several.

    rows: segments (start, count), joined in this order; none: all. Those of a matrix are rows of
    the tensor with its leading dimensions flattened, those of a vector its values, flattened too.
    transposed: the tensor is stored (in, out), in F32, F16 or BF16; the segments are of outputs.
    add: is added to the values of a vector (Gemma stores the weights of its norms less one).
    Example: the keys of a fused ``(n_q + 2 * n_kv, n_embd)`` are ``Source(name, ((n_q, n_kv),))``.
    """

    name: str
    rows: tuple[tuple[int, int], ...] = ()
    transposed: bool = False
    add: float = 0.0


Ref: TypeAlias = str | Source
"""A tensor of the checkpoint by its name, or what is cut out of one."""


def name_of(ref: Ref) -> str:
    """The tensor's name."""
    return ref.name if isinstance(ref, Source) else ref


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: pair i of a head turns by ``position * inv_freq[i]`` radians.

    interleaved: pairs are (2i, 2i + 1); otherwise (i, i + n / 2) for n / 2 frequencies. What a head
    has from n on stays as it is. magnitude scales the result. Where there are long_inv_freq,
    contexts of more than n_ctx_original cells take them and long_magnitude instead (LongRoPE).
    """

    inv_freq: tuple[float, ...]
    magnitude: float = 1.0
    interleaved: bool = False
    long_inv_freq: tuple[float, ...] = ()
    long_magnitude: float = 1.0
    n_ctx_original: int = 0


@dataclass(frozen=True, slots=True)
class Embedding:
    """x = scale * row of `weight` (n_vocab, n_embd)."""

    kind = "embedding"
    weight: Ref
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Positions:
    """output += row ``position + offset`` of `weight` (offset + n_positions, n_embd).

    The model then has n_positions positions and no more. Output is x: this block stands first of
    all, at the start of the first layer.
    """

    kind = "positions"
    output: Register
    weight: Ref
    n_positions: int
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Norm:
    """out = in / sqrt(mean(in^2) + eps) * weight + bias; ``layer``: of `in` less its mean."""

    kind = "norm"
    input: Register
    output: Register
    weight: Ref | None
    eps: float
    type: NormType = "rms"
    bias: Ref | None = None


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention over the KV cache; rope is an index into `ModelSpec.ropes`.

    q, o: (n_heads * head_dim, n_embd) and back; k, v: (n_kv_heads * head_dim, n_embd).
    window: a position sees the `window` newest positions, itself included; 0 = all of them.
    softcap: scores s become softcap * tanh(s / softcap); 0 = none.
    alibi: one slope per query head, or none; scores (scaled, capped) get slope * -distance.
    q_norm, k_norm: after the biases, before the rope. norm_span ``head``: over each head; of
    head_dim weights for all heads or of head_dim for each, which may lie in a tensor for each.
    ``all``: over all heads together.
    """

    kind = "attention"
    input: Register
    output: Register
    q: Ref
    k: Ref
    v: Ref
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


@dataclass(frozen=True, slots=True)
class Ffn:
    """out = down(act(gate(in)) * up(in)); without a gate down(act(up(in))). Biases where given."""

    kind = "ffn"
    input: Register
    output: Register
    gate: Ref | None
    up: Ref
    down: Ref
    n_ff: int
    activation: Activation
    gate_bias: Ref | None = None
    up_bias: Ref | None = None
    down_bias: Ref | None = None


@dataclass(frozen=True, slots=True)
class Moe:
    """out = sum over the top_k likeliest experts of p * expert(in), + the shared expert of (in).

    p = softmax(router(in)) over all n_experts; the top_k of them, of equal ones the first, count.
    normalize: these are made to sum to one. scale: they are multiplied by this. An expert is a
    gated `Ffn` of n_ff. gate, up, down: one tensor for all experts, (n_experts, n_ff, n_embd) and
    (n_experts, n_embd, n_ff), or one per expert. shared_*: a gated Ffn of n_ff_shared for every
    token; shared_router (1, n_embd): it is multiplied by sigmoid(shared_router(in)).
    """

    kind = "moe"
    input: Register
    output: Register
    router: Ref
    gate: Ref | tuple[Ref, ...]
    up: Ref | tuple[Ref, ...]
    down: Ref | tuple[Ref, ...]
    n_experts: int
    top_k: int
    n_ff: int
    activation: Activation
    normalize: bool = True
    scale: float = 1.0
    shared_gate: Ref | None = None
    shared_up: Ref | None = None
    shared_down: Ref | None = None
    n_ff_shared: int = 0
    shared_router: Ref | None = None


@dataclass(frozen=True, slots=True)
class Add:
    """output += scale * input."""

    kind = "add"
    input: Register
    output: Register
    scale: float = 1.0


Block: TypeAlias = Positions | Norm | Attention | Ffn | Moe | Add


@dataclass(frozen=True, slots=True)
class Head:
    """logits = softcap(scale * (weight @ norm(x) + bias)); the norm is as in `Norm`."""

    kind = "head"
    norm: Ref | None
    eps: float
    weight: Ref
    scale: float = 1.0
    softcap: float = 0.0
    norm_type: NormType = "rms"
    norm_bias: Ref | None = None
    bias: Ref | None = None


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything that is needed to run a model, but the weights.

    ignored: tensors of the checkpoint that the model is known not to use.
    """

    architecture: str
    name: str
    n_vocab: int
    n_embd: int
    n_ctx_train: int
    ropes: tuple[Rope, ...]
    embedding: Embedding
    layers: tuple[tuple[Block, ...], ...]
    head: Head
    ignored: frozenset[str] = frozenset()

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    def blocks(self) -> Iterator[Block]:
        for layer in self.layers:
            yield from layer

    def tensors(self) -> set[str]:
        """Names of all tensors that the model uses."""
        parts = (self.embedding, *self.blocks(), self.head)
        return {name for part in parts for name in tensors_of(part)}

    def shallow(self, layers: Sequence[int]) -> ModelSpec:
        """The model of these layers alone, in this order; the embedding and the head stay.

        ShapeError for none, or one that it has not.
        """
        wrong = [layer for layer in layers if not 0 <= layer < self.n_layers]
        if wrong or not layers:
            raise ShapeError(
                f"layers: expected some of 0 to {self.n_layers - 1}, found {wrong[:1] or 'none'}"
            )
        return replace(self, layers=tuple(self.layers[layer] for layer in layers))

    def stage(self, first: int = 0, last: int | None = None) -> dict[str, object]:
        """Layers ``[first, last)`` as the extension takes them: plain dicts and lists.

        The stage that holds layer 0 embeds; the one that holds the last layer has the head.
        """
        last = self.n_layers if last is None else last
        if not 0 <= first < last <= self.n_layers:
            raise ShapeError(
                f"stage: expected 0 <= first < last <= {self.n_layers} layers, "
                f"found {first}, {last}"
            )
        return {
            "n_embd": self.n_embd,
            "n_vocab": self.n_vocab,
            "ropes": [_plain(r) for r in self.ropes],
            "embedding": _plain(self.embedding) if first == 0 else None,
            "layers": [[_plain(b) for b in layer] for layer in self.layers[first:last]],
            "head": _plain(self.head) if last == self.n_layers else None,
        }


def tensors_of(part: Embedding | Block | Head) -> Iterator[str]:
    """Names of the tensors that a part of a model uses; some more than once."""
    for f in fields(part):
        if "Ref" in str(f.type):  # annotations are kept as text
            value = getattr(part, f.name)
            for ref in value if isinstance(value, tuple) else (value,):
                if ref is not None:
                    yield name_of(ref)


def _plain(part: Rope | Source | Embedding | Block | Head) -> dict[str, object]:
    plain: dict[str, object] = {"kind": part.kind} if hasattr(part, "kind") else {}
    for f in fields(part):
        if (value := getattr(part, f.name)) not in (None, ()):
            plain[f.name] = _value(value)
    return plain


def _value(value: object) -> object:
    if isinstance(value, Source):
        return _plain(value)
    return [_value(v) for v in value] if isinstance(value, tuple) else value
