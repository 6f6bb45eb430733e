"""The types of the extension module. One section per csrc/bindings/bind_<noun>.cpp."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, final

import numpy as np
from numpy.typing import ArrayLike, NDArray

# ---- formats (bind_formats.cpp)

@final
class TensorRow:
    """One line of a checkpoint's tensor table; a copy that may outlive the file."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> str:
        """The type's name, for example "Q4_K"; "type 77" when this build does not know it."""
    @property
    def type_id(self) -> int | None:
        """The type's number in GGUF, None for types that GGUF has not."""
    @property
    def supported(self) -> bool:
        """Whether this build can compute with the type; a model that needs others is refused."""
    @property
    def shape(self) -> tuple[int, ...]:
        """Outermost first: (rows, row length). Empty for a scalar."""
    @property
    def strides(self) -> tuple[int, ...]:
        """Elements (not bytes) from one to the next, per dimension."""
    @property
    def contiguous(self) -> bool:
        """Whether the elements lie row after row without gaps."""
    @property
    def source(self) -> str:
        """The path of the file that the tensor lies in."""
    @property
    def offset(self) -> int:
        """Of the first byte, from the start of that file."""
    @property
    def nbytes(self) -> int:
        """Bytes of the values, row after row; 0 when the type is unknown."""

class Checkpoint:
    """A file of weights, mapped into memory and checked throughout; one class per format.

    FormatError, naming file, field, offset, expected and found, for whatever breaks the format;
    UnsupportedError for what this build does not read; ResourceError when memory, address space or
    descriptors run out.
    """

    @property
    def format(self) -> str:
        """The format's name, such as "GGUF"."""
    @property
    def files(self) -> list[str]:
        """The paths of all files that tensors lie in."""
    @property
    def nbytes(self) -> int:
        """Size of all files."""
    @property
    def data_offset(self) -> int:
        """Where tensor data starts, from the start of the first file."""
    @property
    def metadata(self) -> dict[str, Any]:
        """The file's keys and values in the file's order; the same dict every time.

        GGUF: integers are int, floats float, bools bool, strings str. An array of strings is a
        list[str], an array of numbers or bools a numpy array of the file's element type (a copy),
        an array of arrays a list of these. safetensors: str to str. PyTorch: what is not a tensor,
        by its path ("optimizer.lr"), lists of plain values as lists. llama2.c: the dims, integers.

        Strings are decoded as UTF-8. Bytes that are not valid UTF-8 become lone surrogates
        (PEP 383): `s.encode("utf-8", "surrogateescape")` always gives back the file's bytes.
        """
    @property
    def tensors(self) -> list[TensorRow]:
        """The tensor table in the file's order, including unsupported types."""
    def tensor(self, name: str) -> TensorRow:
        """One line of it. FormatError when there is no such tensor."""
    def data(self, name: str) -> NDArray[np.uint8]:
        """The bytes from the tensor's first element to its last, which are nbytes where it is
        contiguous: read-only, in the mapped file where they can be, which they keep open.

        FormatError when there is no such tensor, UnsupportedError when its type is unknown.
        """
    def release(self, name: str, begin: int = 0, nbytes: int = ...) -> None:
        """Give the pages of a tensor, or of some of its bytes, back to the system; they may be
        read again. FormatError when there is no such tensor."""

@final
class GgufFile(Checkpoint):
    """A GGUF file (version 2 or 3, little-endian)."""

    def __init__(self, path: str | bytes | PathLike[str] | PathLike[bytes]) -> None: ...
    @property
    def version(self) -> int: ...
    @property
    def alignment(self) -> int:
        """Bytes; every tensor starts at a multiple of it, counted from data_offset."""
    @property
    def entries(self) -> list[tuple[str, bytes]]:
        """Metadata: keys, and the bytes of type and value as they lie in the file."""

@final
class SafetensorsFile(Checkpoint):
    """A safetensors file."""

    def __init__(self, path: str | bytes | PathLike[str] | PathLike[bytes]) -> None: ...

@final
class TorchFile(Checkpoint):
    """What torch.save wrote, a zip archive or a stream. Nothing of its pickle is run."""

    @property
    def globals(self) -> list[tuple[str, bool, bool]]:
        """What the pickle asks for, in its order: "module.name", whether it is one of those that
        rebuild tensors, as all are in a file that opens, and whether it is known to run code."""

@final
class Llama2cFile(Checkpoint):
    """A .bin file of llama2.c."""

@final
class ShardedCheckpoint(Checkpoint):
    """Several files as one; metadata are those of the first."""

def open_checkpoint(path: str | bytes | PathLike[str] | PathLike[bytes]) -> Checkpoint | None:
    """The checkpoint at path by its bytes, all shards of it where that is an index; None when it
    is of no format that this build reads."""

def pickle_globals(
    path: str | bytes | PathLike[str] | PathLike[bytes],
) -> tuple[list[tuple[str, bool, bool]], str]:
    """What the pickles of a file of torch.save ask for, as TorchFile.globals, also where the file
    is refused: then the second is why, else "". FormatError when there is no such file."""

def read_head(path: str | bytes | PathLike[str] | PathLike[bytes], nbytes: int) -> bytes:
    """The first bytes of a regular file, at most nbytes. FormatError when there is no such file."""

# ---- weight formats (bind_quant.cpp)

def weight_formats() -> list[dict[str, Any]]:
    """name: str, gguf_id: int, block: int (weights in one), block_bytes: int, fine_inputs: bool
    (activations meet it in fifteen bits); of each format."""

def runnable_isas() -> list[str]:
    """Names of the kernel tables that this CPU can run, best last."""

def dequantize(
    dtype: str, data: NDArray[np.uint8], shape: Sequence[int]
) -> NDArray[np.float32]: ...
def quantize(
    dtype: str,
    x: NDArray[np.floating[Any]],
    importance: NDArray[np.floating[Any]] | None = None,
    pool: ThreadPool | None = None,
    isa: str = "",
) -> NDArray[np.uint8]:
    """Rows of blocks, uint8 (..., bytes of a row), of rows of weights (..., columns); see
    pyflow.quant.quantize. isa: the kernel table, "" for the best one."""

class Feedback:
    """What an error in one column is to change in others (csrc/encode/feedback.h)."""

    def __init__(
        self,
        moments: NDArray[np.floating[Any]],
        columns: int,
        pool: ThreadPool | None = None,
        isa: str = "",
    ) -> None:
        """moments: (size(columns),) sums of products of inputs' columns. FormatError where they are
        not positive definite."""
    @staticmethod
    def size(columns: int) -> int:
        """How many numbers the moments of so many columns, a multiple of 16, are."""

def requantize(
    from_dtype: str,
    data: NDArray[np.uint8],
    columns: int,
    dtype: str,
    importance: NDArray[np.floating[Any]] | None = None,
    first_row: int = 0,
    pool: ThreadPool | None = None,
    feedback: Feedback | None = None,
    isa: str = "",
) -> tuple[NDArray[np.uint8], tuple[float, float, float, float]]:
    """Rows of one format's bytes as another's, uint8 (rows, bytes of a row), and what was lost.

    feedback: of the rows' columns; importance is then not looked at, and squares of errors are
    those of d times the inputs, of weights those by the diagonal.

    Of the latter, d being a weight's difference and w the importance: the sums of w d^2, of the w
    x^2 of the weights, of |d|, and the largest |d|. Errors count rows from first_row. The same
    with any number of threads.
    """

# ---- sampler (bind_sampler.cpp)

@final
class Sampled:
    """A drawn token."""

    @property
    def token(self) -> int: ...
    @property
    def logprob(self) -> float:
        """Natural logarithm, by the softmax of the row as it was; NaN unless asked for."""
    @property
    def top(self) -> list[tuple[int, float]]:
        """The likeliest tokens and their logprobs, as many as n_logprobs asked for."""

@final
class Sampler:
    """From logits to the next token; the stages are described in csrc/sample/sampler.h.

    Raises PyflowError, naming the parameter, for a value out of its range.
    """

    def __init__(
        self,
        *,
        temperature: float = 0.8,
        top_k: int = 40,
        top_p: float = 0.95,
        min_p: float = 0.05,
        repeat_penalty: float = 1.0,
        repeat_last_n: int = 64,
        presence_penalty: float = 0.0,
        frequency_penalty: float = 0.0,
        logit_bias: Sequence[tuple[int, float]] = ...,
        seed: int = 0,
        stream: int = 0,
        n_logprobs: int = 0,
    ) -> None: ...
    stream: int
    """Which stream of noise further draws take."""
    def sample(
        self,
        logits: NDArray[np.float32],
        position: int,
        path: Sequence[int] | NDArray[np.int32] = ...,
    ) -> Sampled:
        """The token for `position`; `path` are the tokens between the accepted ones and it."""
    def distribution(
        self, logits: ArrayLike, path: Sequence[int] | NDArray[np.int32] = ...
    ) -> list[tuple[int, float]]:
        """The distribution that `sample` draws from, by token; a certainty at temperature 0."""
    def accept(self, token: int) -> None:
        """Adds a token of the text to what penalties look back on."""
    def accept_all(self, tokens: Sequence[int] | NDArray[np.int32]) -> None: ...

def philox4x32(counter: Sequence[int], key: Sequence[int]) -> list[int]:
    """Four random words from a counter of four words and a key of two."""

def gumbel(seed: int, stream: int, position: int, tokens: NDArray[np.int32]) -> NDArray[np.float64]:
    """The noise of tokens at a position."""

# --- threads, stages, contexts (bind_model.cpp) ---

MAX_SEQUENCES: int
"""The most sequences that a context may keep."""
MAX_BATCH: int
"""The most rows that a step may have."""

class Placement:
    """Threads and memory nodes, as `topology.Placement` plans them; shared by pools.

    mode: off, interleave, local or mirror. nodes: number, CPUs and number of threads of each.
    """

    def __init__(self, mode: str, nodes: Sequence[tuple[int, Sequence[int], int]]) -> None: ...
    @property
    def n_copies(self) -> int:
        """Of the weights."""
    @property
    def refusals(self) -> list[str]:
        """What the system refused so far, and why; each once."""

class ThreadPool:
    """Persistent worker threads, shared by all contexts of a model."""

    def __init__(
        self, n_threads: int, adapts: bool = True, *, placement: Placement = ...
    ) -> None: ...
    @property
    def n_threads(self) -> int: ...
    @property
    def placement(self) -> Placement: ...

class Stage:
    """Packed weights and blocks of a range of layers; `spec` as `ModelSpec.stage` gives it.

    load=False binds and checks without reading weights, to plan memory. pack_as: a format ("Q8_0")
    that matrices of floats are turned into; UnsupportedError for what it cannot hold.
    """

    def __init__(
        self,
        file: Checkpoint,
        spec: dict[str, object],
        pool: ThreadPool,
        load: bool = True,
        pack_as: str | None = None,
    ) -> None: ...
    @property
    def weight_bytes(self) -> int: ...
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
    def isa(self) -> str: ...
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
    ) -> None: ...
    @staticmethod
    def memory(
        stage: Stage, *, n_ctx: int, n_seq_max: int, n_batch: int, cache_type: str
    ) -> tuple[int, int]:
        """Bytes of KV cache and of scratch."""

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
    def forward_hidden(
        self,
        input: ArrayLike,
        positions: ArrayLike,
        seqs: object,
        regime: str = "decode",
        parents: ArrayLike = ...,
    ) -> NDArray[np.float32]:
        """Hidden states (n, n_embd) after this stage's layers; parents as in `forward`."""
    def sample(
        self,
        input: ArrayLike,
        positions: ArrayLike,
        seqs: object,
        wanted: ArrayLike,
        samplers: Sequence[Sampler],
        regime: str = "decode",
    ) -> list[Sampled]:
        """The token after each wanted row; samplers[i] draws and accepts that of wanted[i]."""
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
    def interrupt(self) -> None: ...
    def clear(self) -> None: ...
    def seq_cp(self, src: int, dst: int, p0: int, p1: int) -> None: ...
    def seq_rm(self, seq: int, p0: int, p1: int) -> None: ...
    def seq_keep(self, seq: int) -> None: ...
    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None: ...
    def seq_pos_min(self, seq: int) -> int: ...
    def seq_pos_max(self, seq: int) -> int: ...
    def seq_reusable(self, seq: int, n: int) -> int: ...
    @property
    def n_free(self) -> int: ...

# --- speculation (bind_speculate.cpp) ---

POLICIES: dict[str, str]
"""Names of policies, each with its promise: exact, distribution or lossy."""

class Draft:
    """A sequence's newest token and what may follow it: see pyflow.speculate.DraftTree."""

    def __init__(
        self,
        seq: int,
        root: int,
        tokens: Sequence[int],
        parents: Sequence[int],
        n_verified: int,
        asked: Sequence[int],
        sampler: Sampler,
        distributions: Sequence[Sequence[tuple[int, float]]] = (),
    ) -> None: ...

class Verified:
    @property
    def nodes(self) -> list[int]:
        """The accepted nodes, from the root on."""
    @property
    def drawn(self) -> list[Sampled]:
        """Their tokens, and one more."""
    @property
    def answers(self) -> list[int]:
        """By asked node."""
    @property
    def hidden(self) -> NDArray[np.float32] | None:
        """n_embd floats."""

def verify(
    context: Context,
    drafts: Sequence[Draft],
    policy: str,
    stops: Sequence[int],
    hidden: bool = False,
    first_layer: int = 0,
    features: ArrayLike = ...,
) -> list[Verified]:
    """See pyflow.Context, as for the functions below."""

def guess(
    context: Context,
    tokens: ArrayLike,
    parents: ArrayLike,
    seq: int,
    wanted: ArrayLike,
    paths: Sequence[Sequence[int]],
    sampler: Sampler,
    n: int,
    distribution: bool = False,
) -> tuple[list[list[tuple[int, float]]], list[list[tuple[int, float]]]]: ...
def exit_layer(
    context: Context, tokens: ArrayLike, parents: ArrayLike, seq: int, layer: int
) -> NDArray[np.float32]: ...
def commit(context: Context, accepted: Sequence[tuple[int, int]]) -> None: ...
def abort(context: Context) -> None: ...

# --- the machine (bind_cpu.cpp) ---

def cpu_info() -> dict[str, Any]:
    """model: str, features: list[str], tables: list[str] that it runs, isa: the one chosen,
    prefetches: bool, whether kernels fetch ahead the weights that meet one or two rows.
    """

def memory_policy() -> str:
    """The policy this process was started with, "default" or as by numactl; empty if unknown."""

def binding_refusal(nodes: Sequence[int]) -> str:
    """What the system refuses of binding memory to these nodes, and why; empty for nothing."""

def read_bandwidth(pool: ThreadPool, nbytes: int, repeats: int) -> float:
    """Bytes per second of reading fresh memory with all threads of a pool; the best of repeats."""
