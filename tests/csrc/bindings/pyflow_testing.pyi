"""Parts of pyflow's arithmetic one by one, for tests and benchmarks. It is not in the wheel.

`isa` names a kernel table (`_core.runnable_isas`). Arrays are used in place and never converted;
ShapeError where they do not fit together.
"""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from pyflow._core import Context, Sampler

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Distribution = Sequence[tuple[int, float]]
"""Tokens and their probabilities."""

# ---- elementwise.cpp

def rms_norm(isa: str, x: Floats, weight: Floats, eps: float, y: Floats) -> None: ...
def layer_norm(isa: str, x: Floats, weight: Floats, eps: float, y: Floats) -> None: ...
def add(isa: str, x: Floats, y: Floats) -> None: ...
def add_scaled(isa: str, x: Floats, y: Floats, s: float) -> None: ...
def scale(isa: str, x: Floats, s: float) -> None: ...
def softcap(isa: str, x: Floats, cap: float) -> None: ...
def log_sum_exp(isa: str, x: Floats) -> float: ...
def activate(isa: str, activation: str, x: Floats) -> None: ...
def gate(isa: str, activation: str, gate: Floats, up: Floats) -> None:
    """gate = activation(gate) * up"""

def rope(isa: str, head: Floats, cos_sin: Floats, interleaved: bool) -> None: ...
def read_bytes(isa: str, p: Bytes, prefetch: bool) -> int:
    """A checksum of all bytes."""

def dot_peak(isa: str, n: int, weights: Bytes, acts: NDArray[np.int8]) -> tuple[int, Ints]:
    """How many multiply-adds were done, at least n, and their sums."""

# ---- attention.cpp

class Cells:
    """One layer's KV cells over two byte arrays."""

    def __init__(
        self, k: Bytes, v: Bytes, type: str, n_kv_heads: int, key_dim: int, value_dim: int
    ) -> None: ...
    def store_kv(self, isa: str, slot: int, k: Floats, v: Floats) -> None: ...
    def store_k(self, isa: str, slot: int, k: Floats) -> None: ...
    def load_k(self, isa: str, slot: int) -> Floats: ...

class Attention:
    """Attention of rows over cells. q: (n_rows, n_heads * key_dim or more); rows: slots and
    positions that each row sees, positions ascending."""

    def __init__(
        self,
        isa: str,
        cells: Cells,
        q: Floats,
        rows: Sequence[tuple[Ints, Ints]],
        n_heads: int,
        scale: float,
        softcap: float,
        slopes: Floats | None = None,
    ) -> None: ...
    def add_sinks(self, sinks: Floats) -> None:
        """A score for each head that joins its weights without a value."""
    def attend(
        self, out: Floats, row_begin: int, row_end: int, kv_head: int, prefill: bool = False
    ) -> None: ...
    def span(self, row: int, kv_head: int, number: int) -> Floats:
        """A partial result, of one span of positions."""
    def merge(self, out: Floats, row: int, kv_head: int, partials: Floats) -> None: ...

# ---- matmul.cpp

class PackedTensor:
    """A weight matrix in tiles, packed from rows of a format's bytes."""

    def __init__(self, dtype: str, data: Bytes, rows: int, cols: int) -> None: ...
    @property
    def rows(self) -> int: ...
    @property
    def cols(self) -> int: ...
    @property
    def tiles(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    def dequantize_row(self, row: int) -> Floats: ...
    def unpack_row(self, row: int) -> Bytes:
        """The row as it was in the file."""

class Activations:
    """Rows of floats (n_rows, k), and the same quantized as a table multiplies them."""

    def __init__(self, isa: str, x: Floats) -> None: ...
    def block(self, row: int, kb: int) -> Bytes: ...

def matmul(
    isa: str,
    weights: PackedTensor,
    activations: Activations,
    y: Floats,
    tile_begin: int,
    tile_end: int,
    repeats: int = 1,
    prefetch: str | None = None,
) -> None:
    """y: (n_rows, 16 * tiles or more), which gets the columns of the tiles."""

def read(isa: str, weights: PackedTensor) -> int:
    """Reads all tiles once; a checksum."""

# ---- tiles.cpp

class Panels:
    """Rows as bf16 panels; poison lies where no row does."""

    def __init__(self, isa: str, x: Floats, poison: int = 0) -> None: ...
    def array(self) -> NDArray[np.uint16]: ...

def prefill(
    isa: str,
    weights: PackedTensor,
    panels: Panels,
    y: Floats,
    tile_begin: int,
    tile_end: int,
    repeats: int = 1,
) -> None:
    """The product of tiles [tile_begin, tile_end) by prefill_matmul."""

def has_prefill(isa: str, dtype: str) -> bool: ...
def tile_dots(unit: str, kind: str, a: Bytes, b: Bytes, c: Bytes, rows: int, depth: int) -> None:
    """One instruction (s8, su8, bf16) on each 1024 bytes of a, b and c, by `emulated` or
    `hardware`."""

def numbers(weights: PackedTensor) -> tuple[Floats, Floats, Floats, int, int]:
    """s, m, q of each weight, the offset of q, and b of panel_weights.inl. Shape: whole tiles x
    whole units."""

def agrees_with_emulator(wrong: bool) -> bool: ...
def ask_for_tiles() -> str:
    """Why the system refuses them, or nothing."""

# ---- device.cpp

class DeviceCells:
    """Like Cells; commands of a device change its arrays in place."""

    def __init__(
        self, k: Bytes, v: Bytes, type: str, n_kv_heads: int, key_dim: int, value_dim: int
    ) -> None: ...

class DeviceOps:
    """The kernels of csrc/device on a device of `_core.devices()`, compiled for some formats.

    edits: text of the source to replace, each of which must be there. options: of the compiler, in
    place of its own. Arrays of rows have two dimensions.
    """

    def __init__(
        self,
        number: int,
        formats: Sequence[str],
        edits: Sequence[tuple[str, str]] = ...,
        options: str = "",
    ) -> None: ...
    @property
    def source(self) -> str: ...
    @property
    def options(self) -> str: ...
    def first_fault(self) -> str:
        """The self-test: empty if the device is exact."""
    def units_fault(self) -> str:
        """That of matrix units, which then are not used; empty if they are exact or not there."""
    def product(self, weights: PackedTensor, x: Floats) -> Floats:
        """Rows of whole tiles."""
    def quantize(self, x: Floats, pairs: bool) -> Bytes: ...
    def rows(self, name: str, x: Floats, y: Floats, number: float = 0.0) -> Floats:
        """An operation on x with operand y, by row or one row for all: "gate silu", "silu"."""
    def rope(self, x: Floats, cos_sin: Floats, n_heads: int, interleaved: bool) -> Floats: ...
    def store(self, cells: DeviceCells, slots: Ints, k: Floats, v: Floats) -> None: ...
    def pass_keys(self, cells: DeviceCells, from_slots: Ints, to_slots: Ints) -> Floats:
        """Loads keys and stores them elsewhere."""
    def move(self, cells: DeviceCells, moves: Ints) -> None: ...
    def attend(
        self,
        cells: DeviceCells,
        q: Floats,
        rows: Sequence[tuple[Ints, Ints]],
        n_heads: int,
        scale_softcap: tuple[float, float],
        slopes: Floats | None = None,
        scratch_rows: int = 4,
        sinks: Floats | None = None,
    ) -> Floats: ...

def device_compile(number: int, text: str, folder: str, stopped: bool = False) -> tuple[bool, str]:
    """Compiles a program with a kernel `answer`: whether it came from the folder, and why the
    folder could not keep it."""

def device_round_trip(number: int, bytes: bytes) -> bytes:
    """Bytes through pinned, sliced and shared memory and two queues."""

# ---- kv.cpp

Layer = tuple[int, int, int, int]
"""n_kv_heads, sizes of keys and values, window."""
Row = tuple[int, Sequence[int]]
"""A position, and the sequences that the row belongs to."""

def kv_nbytes(
    layers: Sequence[Layer], type: str, n_ctx: int, n_seq_max: int, n_batch: int
) -> int: ...

class KvCache:
    """csrc/kv/kv_cache.h describes the methods."""

    def __init__(
        self,
        layers: Sequence[Layer],
        type: str,
        n_ctx: int,
        n_seq_max: int,
        n_batch: int,
        rotate: Callable[[int, Floats, int], object] | None = None,
    ) -> None: ...
    def begin(self, rows: Sequence[Row], /) -> None: ...
    def grow(self, rows: Sequence[Row], parents: Sequence[int], /) -> None: ...
    def slots(self, layer: int, /) -> list[int]: ...
    def views(self, layer: int, /) -> list[tuple[list[int], list[int]]]:
        """Positions and slots that each row sees."""
    def commit(self, accepted: Sequence[tuple[int, int]] = ..., /) -> None: ...
    def abort(self) -> None: ...
    def seq_cp(self, src: int, dst: int, p0: int, p1: int, /) -> None: ...
    def seq_rm(self, seq: int, p0: int, p1: int, /) -> None: ...
    def seq_keep(self, seq: int, /) -> None: ...
    def seq_add(self, seq: int, p0: int, p1: int, delta: int, /) -> None: ...
    def clear(self) -> None: ...
    def seq_pos_min(self, seq: int, /) -> int: ...
    def seq_pos_max(self, seq: int, /) -> int: ...
    def seq_reusable(self, seq: int, n: int = ...) -> int: ...
    def groups(self) -> list[tuple[int, int, int]]:
        """Window, capacity and used cells of each."""
    def group_of(self, layer: int, /) -> int: ...
    def cells(self, group: int, seq: int, /) -> list[tuple[int, int]]: ...
    def check(self) -> None: ...
    def keys(self, layer: int, /) -> Bytes: ...
    def values(self, layer: int, /) -> Bytes: ...

def context_kv(context: Context) -> KvCache: ...

# ---- verify.cpp, tests/csrc/sample/count_pairs.cpp

class Rng:
    """A policy's random decisions; tests derive from it."""

    def __init__(self) -> None: ...
    def accept(self, numerator: float, denominator: float) -> bool: ...
    def draw(self, weights: Sequence[float]) -> int: ...

def keyed_rng(seed: int, stream: int, position: int) -> Rng:
    """What policies decide by below the root at a position."""

def walk(
    policy: str,
    tokens: Sequence[int],
    parents: Sequence[int],
    distributions: Sequence[Distribution],
    target: Sequence[Distribution],
    rng: Rng,
) -> tuple[list[int], int]:
    """The accepted nodes, and the token drawn after them; target: a distribution per row."""

def guess(
    sampler: Sampler, logits: Floats, position: int, n: int, distribution: bool
) -> tuple[list[tuple[int, float]], list[tuple[int, float]]]:
    """The guesses for a position, and the distribution that they were drawn from."""

def count_pairs(
    policy: str,
    target: Floats,
    draft: Floats,
    sampler: Sampler,
    n_children: Sequence[int],
    n: int,
) -> NDArray[np.int64]:
    """(n_vocab, n_vocab): how often two tokens followed each other, in n runs."""
