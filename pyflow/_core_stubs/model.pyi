"""Stages, heads and contexts (csrc/bindings: model/, bind_context.cpp, bind_calibrate.cpp)."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyflow._core_stubs.adapters import AdapterSet
from pyflow._core_stubs.files import Checkpoint
from pyflow._core_stubs.link import Link
from pyflow._core_stubs.machine import ThreadPool

MAX_SEQUENCES: int
"""The most sequences that a context may keep."""
MAX_BATCH: int
"""The most rows that a step may have."""

class OffloadGroup(TypedDict):
    """Blocks of `layers` that can run on devices do, and the head."""

    devices: list[int]
    """Their numbers among the devices of this machine; several share the rows of matrices."""
    layers: list[int]
    head: bool

class Offload(TypedDict):
    groups: list[OffloadGroup]
    experts: list[int]
    """Layers whose experts go with them."""
    allow_inexact: bool
    programs: str
    """A folder that keeps compiled programs; "": none does."""

class HeadsSpec(TypedDict):
    """As csrc/model/heads/heads.h names it; each head has `kind` "head"."""

    n_embd: int
    n_inner: int
    scale_input: bool
    vocabulary: list[int]
    heads: list[dict[str, Any]]

class Stage:
    """Packed weights and blocks of a range of layers; `spec` as `ModelSpec.stage` gives it.

    load=False binds and checks without reading weights, to plan memory. pack_as: a format ("Q8_0")
    that matrices of floats are turned into; UnsupportedError for what it cannot hold. offload: what
    runs on a device, whose bits must be those of the CPU unless allow_inexact.
    """

    def __init__(
        self,
        file: Checkpoint,
        spec: dict[str, object],
        pool: ThreadPool,
        load: bool = True,
        pack_as: str | None = None,
        offload: Offload | None = None,
        member: tuple[int, int] = (0, 1),
        speeds: Sequence[int] = (),
    ) -> None:
        """member: which one, of how many that share the stage. It has its rows of each matrix, in
        proportion to its speed; without speeds, members are alike. With offload, devices do."""
    @property
    def host_tables(self) -> tuple[bool, bool]:
        """Whether the embedding and the head are here, whole and in the host's memory."""
    @property
    def weight_bytes(self) -> int:
        """In the host's memory."""
    @property
    def device_weight_bytes(self) -> list[int]:
        """By device, group after group."""
    @property
    def device_faults(self) -> list[str]:
        """By device: the first result that differs from the CPU's; "" of an exact one."""
    @property
    def device_refusals(self) -> list[str]:
        """By device: why compiled programs could not be kept; empty if they are."""
    @property
    def token_bytes(self) -> int:
        """Bytes of packed weights that every token needs.

        All but tables that are not also the head, of which a token takes one row, and of experts as
        many as it takes.
        """
    def read_rate(self, repeats: int) -> float:
        """Bytes per second of only reading those, by the pool's threads; the best of repeats."""
    def dot_rate(self, repeats: int) -> float:
        """Multiply-adds of int8 per second of the kernel table, by the pool's threads; the best."""
    @property
    def key_widths(self) -> list[int]:
        """Per layer with cells: values of a cell's keys, of this member."""
    @property
    def isa(self) -> str: ...
    @property
    def prefill(self) -> str:
        """The arithmetic of prompts: bf16, or decode if no matrix has another one."""
    def rounds(self, regime: str = "decode") -> list[int]:
        """Of a member: bytes that each round of its layers brings together, of all members, for a
        row of this regime."""
    @property
    def shifts(self) -> bool:
        """Whether cells may move to other positions (`Context.seq_add`)."""
    @property
    def used_tensors(self) -> set[str]: ...

class InputMoments:
    """Sums of squares of the inputs of each matrix of a stage, column by column; with moments also
    of the products of columns."""

    def __init__(self, stage: Stage, moments: bool = False) -> None: ...
    def sums(self) -> list[tuple[str, int, int, NDArray[np.float64]]]:
        """For each matrix its tensor, its first row there, how many rows were added, and the sums
        (columns,)."""
    def moments(self) -> list[tuple[list[tuple[str, int]], int, NDArray[np.float32]]]:
        """For each input of matrices, experts excepted: their tensors and first rows, its columns,
        and the sums in the form that Feedback takes, a view."""

class Heads:
    """Networks of a trained speculator that guess the tokens after one that a model has drawn.

    csrc/model/heads/heads.h has their arithmetic and the names in `spec`. They run on the threads
    of `base`, whose embedding and head they may share. pack_as: as for `Stage`. tables: a stage
    with those of the two that `base` lacks; tied: they are one. ShapeError, UnsupportedError: they
    do not fit the model.
    """

    def __init__(
        self,
        file: Checkpoint,
        spec: HeadsSpec,
        base: Stage,
        pack_as: str | None = None,
        tables: Stage | None = None,
        tied: bool = False,
    ) -> None: ...
    @property
    def n_heads(self) -> int: ...
    @property
    def n_guessed(self) -> int:
        """So many tokens heads choose from."""
    @property
    def nbytes(self) -> int: ...
    def draft(
        self,
        hidden: ArrayLike,
        root: int,
        n_nodes: int,
        depth: int,
        least: float = 0.0,
        least_level: float = 0.0,
        width: int = 64,
    ) -> tuple[list[int], list[int], list[float]]:
        """Tokens, parents and probabilities of the n_nodes likeliest nodes below the root.

        width: children of a node at most; 1 gives a chain.

        hidden: (n_embd,), the input of the model's head from which the root was drawn. A node's
        probability is that of its token if its parent is right; nodes whose paths have less than
        `least` are left out. A level whose paths have less than least_level together is not
        extended. ShapeError for numbers out of range.
        """
    def draft_all(
        self,
        hidden: ArrayLike,
        roots: ArrayLike,
        n_nodes: int,
        depth: int,
        least: float = 0.0,
        least_level: float = 0.0,
        width: int = 64,
    ) -> list[tuple[list[int], list[int], list[float]]]:
        """The same for several roots, each as if it were alone; weights are read once per level.

        hidden: (len(roots), n_embd).
        """
    def logits(self, hidden: ArrayLike, tokens: ArrayLike) -> NDArray[np.float32]:
        """What heads say along a text that begins with the root: (len(tokens), n_guessed)."""

class DenseFile:
    """Layers after an encoder's last one, from a file of their own."""

    def __init__(
        self,
        file: Checkpoint,
        layers: Sequence[Mapping[str, object]],
        stage: Stage,
        pack_as: str | None = None,
    ) -> None: ...
    @property
    def nbytes(self) -> int: ...

class Readout(TypedDict, total=False):
    """What is made of the last layer's rows."""

    pools: list[str]
    """Joined in this order; without any, rows stay apart."""
    chain: str
    """Layers of the stage that follow, by their name."""
    files: bool
    """Whether those of the encoder's files follow."""
    normalize: bool
    first_pooled: int
    """Rows of each text before it are left out of pools."""

class TextEncoder:
    """Scratch memory in which an encoder runs texts, n_batch rows a step. One thread at a time."""

    def __init__(
        self,
        stage: Stage,
        n_batch: int,
        files: Sequence[DenseFile],
        tables: Stage | None = None,
        link: Link | None = None,
    ) -> None:
        """tables: the stage that embeds tokens, where `stage` does not. link: to other members."""
    @staticmethod
    def nbytes(stage: Stage, n_batch: int) -> int:
        """What an encoder of this size allocates."""
    def encode(
        self,
        tokens: ArrayLike,
        types: ArrayLike,
        ends: ArrayLike,
        readout: Readout,
        rows: ArrayLike = ...,
    ) -> NDArray[np.float32]:
        """A row for each text, or without pools for each of the wanted rows, of all texts.

        Text i ends before ends[i]. types: of tokens, or empty for all 0.
        """

class Context:
    """KV cache and scratch over a stage. positions: i32 (n,); seqs: see pyflow.Context.forward."""

    def __init__(
        self,
        stage: Stage,
        *,
        n_ctx: int,
        n_seq_max: int,
        n_batch: int,
        cache_type: str,
        layers: Sequence[int] = (),
        n_source: int = 0,
        link: Link | None = None,
    ) -> None:
        """n_source: cells of all sources, for a stage that sees some. link: to the other members
        of a stage that several share; they make the same calls."""
    @staticmethod
    def memory(
        stage: Stage,
        *,
        n_ctx: int,
        n_seq_max: int,
        n_batch: int,
        cache_type: str,
        n_source: int = 0,
    ) -> tuple[int, int]:
        """Bytes of KV cache, sources included, and of scratch."""
    @staticmethod
    def device_memory(
        stage: Stage,
        *,
        n_ctx: int,
        n_seq_max: int,
        n_batch: int,
        cache_type: str,
        n_source: int = 0,
    ) -> list[int]:
        """Bytes of both on the stage's devices, group after group."""

    def forward(
        self,
        input: ArrayLike,
        positions: ArrayLike,
        seqs: object,
        wanted: ArrayLike,
        regime: str = "decode",
        parents: ArrayLike = ...,
    ) -> NDArray[np.float32]:
        """Logits of the wanted rows (m, n_vocab).

        input: token ids (n,) on a stage with embedding, hidden states (n, n_embd) on a later one.
        parents: (n,), of the rows of a tree, -1 for its root; they are pending until `commit`.
        """
    def hidden(self) -> NDArray[np.float32]:
        """Hidden states (n, n_embd) of the last step's rows after this stage's layers."""
    def score(
        self,
        input: ArrayLike,
        positions: ArrayLike,
        seqs: object,
        wanted: ArrayLike,
        targets: ArrayLike,
        regime: str = "decode",
    ) -> NDArray[np.float64]:
        """log p(targets[i]) after wanted row i."""
    def observe(self, moments: InputMoments | None) -> None:
        """From now on steps add the inputs of their matrices to these; None: no more. ShapeError if
        they belong to another stage."""
    def lead(self, others: Sequence[Context]) -> None:
        """From now on what this context, of member 0, does is done by all members. ShapeError:
        others are not the contexts of the other members, in their order, of the same sizes."""
    def declare(self, seq: int, n_positions: int) -> None:
        """See pyflow.Context.declare."""
    def adapt(self, seq: int, adapters: AdapterSet | None) -> None:
        """See pyflow.Context.adapt."""
    def interrupt(self) -> None: ...
    def clear(self) -> None: ...
    def read_source(self, seq: int, states: ArrayLike) -> None:
        """Keeps what the decoder needs of an encoder's rows (n, n_embd): the source of a sequence
        that has neither cells nor a source."""
    def share_source(self, src: int, dst: int) -> None:
        """dst, which has no source, sees that of src."""
    def drop_source(self, seq: int) -> None:
        """The sequence has no source any more; idempotent."""
    @property
    def n_free_source(self) -> int:
        """Cells of sources that are free."""
    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None: ...
    def seq_rm(self, seq: int, p0: int, p1: int) -> None: ...
    def seq_keep(self, seq: int) -> None: ...
    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None: ...
    def seq_pos_min(self, seq: int) -> int: ...
    def seq_pos_max(self, seq: int) -> int: ...
    def seq_reusable(self, seq: int, n: int) -> int: ...
    @property
    def n_free(self) -> int: ...
    @property
    def layer_windows(self) -> list[int]:
        """Per layer: how many positions a row sees, itself included; 0 is all."""
    @property
    def others(self) -> list[Context]:
        """The members that this one leads."""
    @property
    def cell_parts(self) -> list[tuple[int, int]]:
        """Per layer: bytes of a cell's keys, and of its values, which come after them."""
    def read_cells(self, layer: int, seq: int, p0: int, p1: int) -> NDArray[np.uint8]:
        """Keys and values of positions [p0, p1), (p1 - p0, bytes of a cell). ShapeError: the layer
        does not hold them all."""
    def restore_cells(
        self, seq: int, position: int, n: int, cells: Sequence[NDArray[np.uint8]]
    ) -> None:
        """Appends n cells to a sequence, n_batch at most; cells[layer] are those of the last rows,
        as `read_cells` gave them. A layer with a window may lack what no later position sees."""
