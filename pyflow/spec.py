"""A model as data: layers as lists of atomic blocks, with the tensors that they use.

`architectures` builds a `ModelSpec` from a checkpoint's metadata; the extension runs it. The hidden
state of a token lives in two registers: ``x``, the residual stream, and ``h``, the branch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields

from .errors import ShapeError


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding: pair i of a head turns by ``position * inv_freq[i]`` radians.

    interleaved: pairs are (2i, 2i + 1); otherwise (i, i + n / 2). magnitude scales the result.
    """

    inv_freq: tuple[float, ...]
    magnitude: float = 1.0
    interleaved: bool = False


@dataclass(frozen=True, slots=True)
class Embedding:
    """x = scale * row of `weight` (n_vocab, n_embd)."""

    weight: str
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Norm:
    """RMS norm: out = in / sqrt(mean(in^2) + eps) * weight."""

    kind = "norm"
    input: str
    output: str
    weight: str
    eps: float


@dataclass(frozen=True, slots=True)
class Attention:
    """Grouped-query attention over the KV cache; rope is an index into `ModelSpec.ropes`.

    window: a position sees the `window` newest positions, itself included; 0 = all of them.
    softcap: scores s become softcap * tanh(s / softcap); 0 = none.
    """

    kind = "attention"
    input: str
    output: str
    q: str
    k: str
    v: str
    o: str
    n_heads: int
    n_kv_heads: int
    head_dim: int
    scale: float
    rope: int
    window: int = 0
    softcap: float = 0.0
    q_bias: str | None = None
    k_bias: str | None = None
    v_bias: str | None = None
    q_norm: str | None = None
    k_norm: str | None = None
    norm_eps: float = 0.0


@dataclass(frozen=True, slots=True)
class Ffn:
    """out = down(act(gate(in)) * up(in)); activation is ``silu`` or ``gelu_tanh``."""

    kind = "ffn"
    input: str
    output: str
    gate: str
    up: str
    down: str
    n_ff: int
    activation: str


@dataclass(frozen=True, slots=True)
class Add:
    """output += input."""

    kind = "add"
    input: str
    output: str


Block = Norm | Attention | Ffn | Add


@dataclass(frozen=True, slots=True)
class Head:
    """logits = softcap(scale * weight @ norm(x))."""

    norm: str
    eps: float
    weight: str
    scale: float = 1.0
    softcap: float = 0.0


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
        names = {self.embedding.weight, self.head.norm, self.head.weight}
        for block in self.blocks():
            for field in _TENSORS[type(block)]:
                value = getattr(block, field)
                if value is not None:
                    names.add(value)
        return names

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
            "ropes": [
                {
                    "inv_freq": list(r.inv_freq),
                    "magnitude": r.magnitude,
                    "interleaved": r.interleaved,
                }
                for r in self.ropes
            ],
            "embedding": {"kind": "embedding", **asdict(self.embedding)} if first == 0 else None,
            "layers": [[_plain(b) for b in layer] for layer in self.layers[first:last]],
            "head": {"kind": "head", **asdict(self.head)} if last == self.n_layers else None,
        }


_TENSORS: dict[type, tuple[str, ...]] = {
    Norm: ("weight",),
    Attention: ("q", "k", "v", "o", "q_bias", "k_bias", "v_bias", "q_norm", "k_norm"),
    Ffn: ("gate", "up", "down"),
    Add: (),
}
_RENAMED = {"input": "in", "output": "out"}


def _plain(block: Block) -> dict[str, object]:
    plain: dict[str, object] = {"kind": block.kind}
    for f in fields(block):
        plain[_RENAMED.get(f.name, f.name)] = getattr(block, f.name)
    return plain
