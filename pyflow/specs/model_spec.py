"""A model as data: layers as lists of atomic blocks, with the tensors that they use.

`bind.describe` builds a `ModelSpec` from a checkpoint and a spec file; the extension runs it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, TypeAlias

from pyflow.errors import ShapeError, UnsupportedError
from pyflow.specs.block import Block
from pyflow.specs.blocks.attention import Attention
from pyflow.specs.blocks.shortconv import Shortconv
from pyflow.specs.blocks.ssru import Ssru
from pyflow.specs.blocks.token_types import TokenTypes
from pyflow.specs.parts import NormType, Ref, Rope, TensorRef, tensors_of


@dataclass(frozen=True, slots=True)
class Embedding:
    """x = scale * row of `weight` (n_vocab, n_embd)."""

    kind = "embedding"
    weight: Ref
    scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Head:
    """logits = softcap(scale * (weight @ norm(x) + bias)); the norm is as in `Norm`, or none."""

    kind = "head"
    norm: Ref | None
    eps: float
    weight: Ref
    scale: float = 1.0
    softcap: float = 0.0
    norm_type: NormType | Literal["none"] = "rms"
    norm_bias: Ref | None = None
    bias: Ref | None = None


NO_HEAD = Head(None, 0.0, "")
"""Of encoders, which give no logits of a next token."""

Pool: TypeAlias = Literal["none", "first", "mean", "last", "max", "weighted", "mean_sqrt"]
"""How the last layer's rows of a text become one vector; none: they stay apart."""


@dataclass(frozen=True, slots=True)
class Dense:
    """y = norm(activation(weight @ x + bias)), weight (n_out, n_in)."""

    kind = "dense"
    weight: Ref
    n_in: int
    n_out: int
    bias: Ref | None = None
    activation: str = "none"
    norm: Ref | None = None
    norm_bias: Ref | None = None
    norm_type: NormType = "layer"
    norm_eps: float = 0.0


@dataclass(frozen=True, slots=True)
class Chain:
    """Layers after the last one: what they get, and themselves."""

    pool: Pool
    layers: tuple[Dense, ...]


@dataclass(frozen=True, slots=True)
class SourceSpec:
    """The encoder of a model whose decoder reads what it makes of a source text.

    embedding: None if it is the decoder's. start: the token that a text of the decoder begins with.
    """

    layers: tuple[tuple[Block, ...], ...]
    embedding: Embedding | None
    n_vocab: int
    start: int


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Everything that is needed to run a model, except the weights.

    ignored: tensors of the checkpoint that the model is known not to use. Of encoders, pool and
    normalize: how a text becomes a vector, unless other files say so; chains: heads by their names,
    classify and fill. source: the encoder beside the decoder that all else here describes.
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
    pool: Pool = "none"
    normalize: bool = False
    chains: Mapping[str, Chain] = field(default_factory=dict)
    source: SourceSpec | None = None

    @property
    def is_encoder(self) -> bool:
        """Whether tokens see those after them: then it makes vectors of texts and writes none."""
        return self.head is NO_HEAD

    @property
    def n_types(self) -> int:
        """Types of tokens."""
        return next((b.n_types for b in self.blocks() if isinstance(b, TokenTypes)), 1)

    @property
    def n_layers(self) -> int:
        return len(self.layers)

    @property
    def n_carried(self) -> int:
        """Floats that a row takes from layer to layer of a stage beside x."""
        return max((block.carries(self.n_embd) for block in self.blocks()), default=0)

    @property
    def row_width(self) -> int:
        """Floats that a row takes from one stage to the next."""
        return self.n_embd + self.n_carried + sum(self._shared_cells().values())

    def _shared_cells(self) -> dict[int, int]:
        """Layers whose keys and values others read, and floats of a row's."""
        attention = {
            i: block
            for i in {*self.cell_readers.values()}
            for block in self.layers[i]
            if isinstance(block, Attention)
        }
        return {
            i: b.n_kv_heads * (b.head_dim + (b.value_dim or b.head_dim))
            for i, b in sorted(attention.items())
        }

    @property
    def cell_readers(self) -> dict[int, int]:
        """Layers whose attention reads the cells of an earlier one, and which."""
        layers = enumerate(self.layers)
        found = ((i, b) for i, layer in layers for b in layer if isinstance(b, Attention))
        return {i: b.kv_layer for i, b in found if b.kv_layer is not None}

    def blocks(self) -> Iterator[Block]:
        for layer in self.layers:
            yield from layer

    @property
    def window(self) -> int | None:
        """The shortest window of a layer, of convolutions and recurrent units too; None if all see
        the whole text."""
        kinds = (Attention, Shortconv, Ssru)
        windows = (block.window for block in self.blocks() if isinstance(block, kinds))
        return min((window for window in windows if window), default=None)

    def tensors(self) -> set[str]:
        """Names of all tensors that the model uses."""
        layers = (layer for chain in self.chains.values() for layer in chain.layers)
        parts: list[Any] = [self.embedding, *self.blocks(), self.head, *layers]
        if self.source is not None:
            parts += [block for layer in self.source.layers for block in layer]
            parts += [self.source.embedding] if self.source.embedding else []
        return {name for part in parts for name in tensors_of(part) if name}

    def shallow(self, layers: Sequence[int]) -> ModelSpec:
        """The model of these layers alone, in this order; the embedding and the head stay.

        ShapeError: `layers` is empty, or holds a number out of range. UnsupportedError: layers need
        what others of the model make.
        """
        if self.n_carried or self.cell_readers:
            raise UnsupportedError(
                f"layers: {self.name}: expected a model whose layers need no others, found one "
                "whose layers share cells, streams or embeddings"
            )
        wrong = [layer for layer in layers if not 0 <= layer < self.n_layers]
        if wrong or not layers:
            raise ShapeError(
                f"layers: expected some of 0 to {self.n_layers - 1}, found {wrong[:1] or 'none'}"
            )
        return replace(self, layers=tuple(self.layers[layer] for layer in layers))

    def stage(self, first: int = 0, last: int | None = None) -> dict[str, object]:
        """Layers ``[first, last)`` as the extension takes them: plain dicts and lists.

        The stage that holds layer 0 embeds; the one that holds the last layer has the head. Keys
        and values that layers of several stages share travel along with rows: the layer that makes
        them has a place for these, kv_at, and in each later stage the first layer that reads them
        has cells for them (kv_given), which others of this stage read.
        """
        last = self.n_layers if last is None else last
        if not 0 <= first < last <= self.n_layers:
            raise ShapeError(
                f"stage: expected 0 <= first < last <= {self.n_layers} layers, "
                f"found {first}, {last}"
            )
        is_whole = last - first == self.n_layers
        layers = self.layers[first:last] if is_whole else tuple(self._parted(first, last))
        return {
            "n_embd": self.n_embd,
            "n_vocab": self.n_vocab,
            "n_carried": self.n_carried if is_whole else self.row_width - self.n_embd,
            "ropes": [_plain(r) for r in self.ropes],
            "embedding": _plain(self.embedding) if first == 0 else None,
            "layers": [[_plain(b) for b in layer] for layer in layers],
            "head": None if last < self.n_layers or self.is_encoder else _plain(self.head),
            "chains": {
                name: [_plain(layer) for layer in chain.layers]
                for name, chain in self.chains.items()
            },
        }

    def _parted(self, first: int, last: int) -> Iterator[tuple[Block, ...]]:
        """Layers ``[first, last)`` of several stages, counted from 0."""
        at, places = self.n_carried, dict[int, int]()
        for layer, n in self._shared_cells().items():
            places[layer], at = at, at + n
        here = {i: i - first for i in places if first <= i < last}  # whose cells this stage has

        def parted(i: int, block: Block) -> Block:
            if not isinstance(block, Attention):
                return block
            if block.kv_layer is None:
                return replace(block, kv_at=places.get(i))
            if block.kv_layer in here:
                return replace(block, kv_layer=here[block.kv_layer])
            here[block.kv_layer] = i - first
            return replace(block, kv_layer=None, kv_at=places[block.kv_layer], kv_given=True)

        for i in range(first, last):
            yield tuple(parted(i, block) for block in self.layers[i])

    def source_stage(self) -> dict[str, object]:
        """The encoder of a model that has a `source`, as the extension takes it."""
        source = self.source
        if source is None:
            raise ShapeError(f"{self.name}: expected a model that reads sources, found none")
        return {
            "n_embd": self.n_embd,
            "n_vocab": source.n_vocab if source.embedding else 0,
            "ropes": [_plain(r) for r in self.ropes],
            "embedding": _plain(source.embedding) if source.embedding else None,
            "embedded": source.embedding is None,
            "layers": [[_plain(b) for b in layer] for layer in source.layers],
            "head": None,
        }

    def tables(self, *, embedding: bool, head: bool) -> dict[str, object]:
        """A stage without layers that has the embedding, the head, or both."""
        whole = self.stage()
        absent = dict.fromkeys(
            name for name, wanted in (("embedding", embedding), ("head", head)) if not wanted
        )
        return {**whole, "layers": [], **absent}

    @property
    def is_tied(self) -> bool:
        """Whether the head is the embedding."""
        return self.embedding.weight == self.head.weight


def _plain(part: Rope | TensorRef | Embedding | Block | Head | Dense) -> dict[str, object]:
    plain: dict[str, object] = {"kind": part.kind} if hasattr(part, "kind") else {}
    for f in fields(part):
        if (value := getattr(part, f.name)) not in (None, ()):
            plain[f.name] = _value(value)
    return plain


def _value(value: object) -> object:
    if isinstance(value, TensorRef):
        return _plain(value)
    return [_value(v) for v in value] if isinstance(value, tuple) else value
