"""A block of a layer: the base of the kinds in blocks/, one module each.

A kind's class holds all that Python knows of it: its parameters, the keys of its table in a spec,
the roles of its tensors, how it is made and how it is described. csrc/model/blocks/<kind>.cpp runs
it. docs/add-a-block.md shows how to add one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Protocol, Self, TypeAlias

from pyflow.specs.language.shapes import Table
from pyflow.specs.language.values import Choice
from pyflow.specs.parts import Register, Rope

Need: TypeAlias = bool | Literal["auto"]
"""auto: if the checkpoint has it."""

ACTIVATIONS = Choice.of(
    "silu",
    "gelu",
    "gelu_tanh",
    "relu",
    "swiglu_clamped",
    swish="silu",
    gelu_new="gelu_tanh",
    gelu_fast="gelu_tanh",
    gelu_pytorch_tanh="gelu_tanh",
)


@dataclass(frozen=True, slots=True)
class Want:
    """The shape that a role's tensor must have: (rows, columns) or (values,).

    n_experts: one such tensor per expert, or all in one. n_heads: one tensor per head will do.
    also: other shapes that will do. add: is added to the values.
    """

    shape: tuple[int, ...]
    need: Need = True
    n_experts: int = 0
    also: tuple[tuple[int, ...], ...] = ()
    add: float = 0.0
    n_heads: int = 0


@dataclass(frozen=True, slots=True)
class PlePlace:
    """Where rows carry the n values of a token for each of n_layers: from `first` on.

    at: those of the layer at hand.
    """

    n: int = 0
    n_layers: int = 0
    first: int = 0
    at: int = 0


class BlockContext(Protocol):
    """What a block is made from: its table in a spec, and the model at hand."""

    @property
    def n_embd(self) -> int: ...
    @property
    def where(self) -> str:
        """File and place in the model, for messages."""

    @property
    def role(self) -> str:
        """The role of a norm in its step: norm, post_norm, ...; the part of other blocks."""

    @property
    def ple(self) -> PlePlace: ...

    def value(self, key: str) -> Any:
        """The value of a key, or its default. FormatError, SpecError: it is missing or wrong."""

    def inner(self, key: str) -> BlockContext | None:
        """A table within the table; None if it is absent."""

    def other(self, key: str) -> BlockContext | None:
        """The block whose name is under `key`; None if the key is absent."""

    def rope(self, name: str, head_dim: int) -> int | None:
        """The index of a rope of the spec; None for "none"."""

    def n_rows(self, role: str) -> int | None:
        """The rows of a role's tensor in the checkpoint; None if there is none."""

    def bind(self, wants: Mapping[str, Want]) -> dict[str, Any]:
        """References to tensors by their roles; None for those absent or not needed."""

    def cannot_run(self, why: str) -> None:
        """Notes that no stage can run the block as it is described."""


@dataclass(frozen=True, slots=True)
class Block(ABC):
    """output = block(input)."""

    input: Register
    output: Register

    kind: ClassVar[str] = ""
    keys: ClassVar[Table] = {}
    """Of its table in a spec, besides ``kind``."""
    is_named: ClassVar[bool] = True
    """Whether a spec names such blocks under [blocks]; otherwise its other tables imply them."""
    roles: ClassVar[Mapping[str, str]] = {}
    """Roles of its tensors, and what GGUF calls these: q is ``blk.0.attn_q.weight``. Each may have
    a bias, role ``q_bias``."""
    fused: ClassVar[str] = ""
    """GGUF's name of a tensor that holds several of the roles."""

    @classmethod
    @abstractmethod
    def make(cls, at: BlockContext, source: Register, to: Register) -> Self:
        """The block of a spec's table, with its tensors."""

    @abstractmethod
    def words(self, ropes: Sequence[Rope], /) -> Iterator[str]:
        """Its kind and size, then what is special about it; a phrase each."""

    def carries(self, _n_embd: int, /) -> int:
        """Where what it carries along with rows, beside x, ends; 0 if it carries nothing."""
        return 0

    def line(self, ropes: Sequence[Rope]) -> str:
        """One line for `pyflow spec`."""
        return f"{', '.join(self.words(ropes))}  ({self.input} -> {self.output})"
