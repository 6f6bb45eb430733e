"""Models and contexts: the Python face of the C++ engine.

A `Model` holds weights and tokenizer, never changes, and may be shared between threads. A `Context`
holds one user's KV cache; use one per thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeAlias, Unpack, overload

import numpy as np
import psutil
from numpy.typing import ArrayLike, NDArray

from pyflow import formats

from . import _core, catalogue
from .architectures import build_spec
from .chat import ChatTemplate
from .errors import PyflowError, ResourceError, ShapeError, UnsupportedError
from .generate import Completion, Options, Prompt, Stream, generate, stream
from .spec import ModelSpec
from .tokenizer import Tokenizer
from .topology import default_threads

Tokens: TypeAlias = Sequence[int] | NDArray[np.int32]
Sequences: TypeAlias = int | Sequence[int] | Sequence[Sequence[int]] | NDArray[np.int32]
Progress: TypeAlias = Callable[[int, int], None]
CacheType: TypeAlias = Literal["f16", "q8_0"]
Regime: TypeAlias = Literal["prefill", "decode"]

DEFAULT_CTX = 4096
DEFAULT_BATCH = 512


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Bytes of resident memory that a model and one context take, and what the system has left."""

    weights: int
    kv: int
    scratch: int
    tokenizer: int
    available: int

    @property
    def total(self) -> int:
        return self.weights + self.kv + self.scratch + self.tokenizer

    @property
    def fits(self) -> bool:
        return self.total <= self.available


def load(path: str | Path, *, n_threads: int | None = None) -> Model:
    """A model from a pulled name or the path of a checkpoint, ready to run.

    n_threads: None chooses by `topology.default_threads`.
    Raises FormatError or UnsupportedError for a file that is not such a model, ResourceError when
    its weights do not fit into memory.
    """
    return Model(path, n_threads=n_threads)


def plan(
    path: str | Path,
    *,
    n_ctx: int | None = None,
    n_seq_max: int = 1,
    n_batch: int = DEFAULT_BATCH,
    cache_type: CacheType = "f16",
) -> MemoryPlan:
    """What `load` and one context would take, from the file's header alone: nothing is loaded.

    Raises like `load`.
    """
    checkpoint = formats.open(catalogue.resolve(path))
    spec = _checked_spec(checkpoint)
    stage = _core.Stage(checkpoint.native, spec.stage(), _core.ThreadPool(1), load=False)
    args = _context_args(spec, n_ctx, n_seq_max, n_batch, cache_type)
    return _plan(checkpoint, stage, args)


class Model:
    """Weights, tokenizer and chat template of one model. Immutable; safe to share between threads.

    Also a context manager: leaving it frees the weights once no context uses them.
    """

    def __init__(self, path: str | Path, *, n_threads: int | None = None) -> None:
        start = time.monotonic()
        if n_threads is None:
            n_threads, _ = default_threads()
        if n_threads < 1:
            raise ResourceError(f"threads: expected at least 1, found {n_threads}")
        self.path = catalogue.resolve(path)
        self._checkpoint = formats.open(self.path)
        self.metadata = self._checkpoint.metadata
        self.spec = _checked_spec(self._checkpoint)
        self.n_threads = n_threads
        self._pool = _core.ThreadPool(n_threads)
        need = sum(t.nbytes for t in self._checkpoint.tensors)
        if need > (free := psutil.virtual_memory().available):
            raise ResourceError(
                f"{self.path}: the weights take {need:,} bytes, {free:,} are available; close "
                f"other programs or choose a smaller model"
            )
        self._stage: _core.Stage | None = _core.Stage(
            self._checkpoint.native, self.spec.stage(), self._pool
        )
        self.tokenizer = Tokenizer.from_metadata(self.metadata, source=str(self.path))
        if self.tokenizer.n_vocab > self.spec.n_vocab:
            raise ShapeError(
                f"{self.path}: the tokenizer has {self.tokenizer.n_vocab} tokens, the embedding "
                f"only {self.spec.n_vocab} rows"
            )
        self._chat_template: ChatTemplate | None = None
        self.load_ms = 1e3 * (time.monotonic() - start)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def isa(self) -> str:
        """The kernel table in use: scalar, avx2, avx512, ..."""
        return self.stage.isa

    @property
    def stage(self) -> _core.Stage:
        if self._stage is None:
            raise PyflowError(f"{self.path}: the model has been closed")
        return self._stage

    @property
    def pool(self) -> _core.ThreadPool:
        return self._pool

    @property
    def chat_template(self) -> ChatTemplate | None:
        """The model's own template; None where it has none."""
        if self._chat_template is None and "tokenizer.chat_template" in self.metadata:
            self._chat_template = ChatTemplate.from_metadata(
                self.metadata, tokenizer=self.tokenizer, source=str(self.path)
            )
        return self._chat_template

    def context(
        self,
        n_ctx: int | None = None,
        *,
        n_seq_max: int = 1,
        n_batch: int = DEFAULT_BATCH,
        cache_type: CacheType = "f16",
    ) -> Context:
        """A fresh context of n_ctx cells shared by up to n_seq_max sequences.

        n_ctx: None is 4096 or the model's own limit, whichever is less. n_batch: rows of one step.
        Raises ShapeError for sizes out of range, ResourceError when the memory is refused.
        """
        args = _context_args(self.spec, n_ctx, n_seq_max, n_batch, cache_type)
        memory = _plan(self._checkpoint, self.stage, args)
        if memory.kv + memory.scratch > memory.available:
            raise ResourceError(
                f"context of {args['n_ctx']}: needs {memory.kv + memory.scratch:,} bytes, "
                f"{memory.available:,} are available; choose a smaller context or cache type q8_0"
            )
        return Context(self, args)

    def memory(
        self,
        n_ctx: int | None = None,
        *,
        n_seq_max: int = 1,
        n_batch: int = DEFAULT_BATCH,
        cache_type: CacheType = "f16",
    ) -> MemoryPlan:
        """What the model and one such context take."""
        args = _context_args(self.spec, n_ctx, n_seq_max, n_batch, cache_type)
        return _plan(self._checkpoint, self.stage, args)

    def logits(self, tokens: Tokens) -> NDArray[np.float32]:
        """Logits after each token of a fresh sequence: (len(tokens), n_vocab)."""
        ids = _ids(tokens)
        with self.context(
            max(1, ids.size), n_batch=min(DEFAULT_BATCH, max(1, ids.size))
        ) as context:
            return context.forward(ids, logits="all")

    @overload
    def generate(  # type: ignore[overload-overlap]  # a text is also a sequence of texts
        self, prompt: Prompt, **options: Unpack[Options]
    ) -> Completion: ...
    @overload
    def generate(
        self, prompt: Sequence[Prompt], **options: Unpack[Options]
    ) -> list[Completion]: ...
    def generate(
        self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]
    ) -> Completion | list[Completion]:
        """What the model writes after the prompt; a list of it for several prompts.

        A prompt is text, continued as it stands, or token ids; several run as one batch. Options:
        n_predict, sampling, stop, n_ctx, cache_type, progress; see `generate.Options`.
        PyflowError: an empty prompt, one too long for the context, an option out of range.
        """
        return generate(self, prompt, **options)

    def stream(self, prompt: Prompt | Sequence[Prompt], **options: Unpack[Options]) -> Stream:
        """The same as an iterator of chunks, each as soon as its token is drawn.

        Also a context manager, which ends the generation and frees its context when it is left.
        """
        return stream(self, prompt, **options)

    @contextmanager
    def scorer(self, *, n_ctx: int, regime: Regime = "prefill") -> Iterator[Scorer]:
        """What perplexity needs: a context that says how likely each token of a text was."""
        with self.context(n_ctx, n_batch=min(DEFAULT_BATCH, n_ctx)) as context:
            yield Scorer(context, regime)

    def close(self) -> None:
        """Frees the weights once no context uses them; idempotent."""
        self._stage = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Scorer:
    """A context with a regime: the `LogprobSource` of `quant.perplexity`."""

    context: Context
    regime: Regime

    def score(self, tokens: Tokens, first: int = 0) -> NDArray[np.float64]:
        """log p(tokens[i + 1] | tokens[: i + 1]) for i = first .. n - 2, from an empty cache."""
        return self.context.score(tokens, first, regime=self.regime)


class Context:
    """One user's KV cache over a model: runs tokens, keeps sequences. One thread at a time.

    Positions count from 0 in each sequence. Where `positions` is None, tokens follow the newest
    position of their sequence.
    """

    def __init__(self, model: Model, args: dict[str, int | str]) -> None:
        self.model = model
        self.n_ctx = int(args["n_ctx"])
        self.n_seq_max = int(args["n_seq_max"])
        self.n_batch = int(args["n_batch"])
        self._native: _core.Context | None = _core.Context(model.stage, **args)  # type: ignore[arg-type]

    @property
    def native(self) -> _core.Context:
        if self._native is None:
            raise PyflowError("the context has been closed")
        return self._native

    def forward(
        self,
        tokens: Tokens,
        positions: ArrayLike | None = None,
        seqs: Sequences = 0,
        *,
        logits: Literal["last", "all", "none"] = "last",
        regime: Regime = "decode",
        progress: Progress | None = None,
    ) -> NDArray[np.float32]:
        """Appends tokens and returns logits: (1, n_vocab), (n, n_vocab) or (0, n_vocab).

        seqs: a sequence for all rows, one per row, or a list of sequences per row (branches of a
        tree). regime: prefill for the tokens of a prompt, where a CPU may have a faster arithmetic
        for many rows; a token computed again must be given the regime it had. Tokens beyond
        n_batch run in chunks; progress(done, total) is called after each.
        Raises ResourceError when the cells run out, before anything is written by that chunk.
        """
        ids = _ids(tokens)
        wanted = {"last": ids.size - 1, "all": 0, "none": ids.size}[logits]
        parts = []
        for at, chunk in self._chunks(ids, positions, seqs, progress):
            rows = np.arange(max(0, wanted - at), chunk[0].size, dtype=np.int32)
            parts.append(self.native.forward(*chunk, rows, regime))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def sample(
        self,
        tokens: Tokens,
        positions: ArrayLike | None,
        seqs: Sequences,
        wanted: ArrayLike,
        samplers: Sequence[_core.Sampler],
        *,
        regime: Regime = "decode",
        progress: Progress | None = None,
    ) -> list[_core.Sampled]:
        """Appends tokens and draws the next one after each wanted row: samplers[i] for wanted[i].

        One call into the extension per n_batch rows: forward and sampling together.
        """
        ids = _ids(tokens)
        rows = np.asarray(wanted, np.int32)
        if ids.size <= self.n_batch and positions is not None:
            at = np.asarray(positions, np.int32)
            return self.native.sample(ids, at, seqs, rows, samplers, regime)
        out: list[_core.Sampled] = []
        for at_row, chunk in self._chunks(ids, positions, seqs, progress):
            here = rows[(rows >= at_row) & (rows < at_row + chunk[0].size)] - at_row
            mine = samplers[len(out) : len(out) + here.size]
            out += self.native.sample(*chunk, here, mine, regime)
        return out

    def score(
        self,
        tokens: Tokens,
        first: int = 0,
        *,
        regime: Regime = "prefill",
        progress: Progress | None = None,
    ) -> NDArray[np.float64]:
        """log p(tokens[i + 1] | tokens[: i + 1]) for i = first .. n - 2, in a cleared cache."""
        ids = _ids(tokens)
        if not 0 <= first < ids.size - 1:
            raise ShapeError(f"score: expected 0 <= first < {ids.size - 1}, found {first}")
        self.clear()
        parts = []
        for at, chunk in self._chunks(ids[:-1], None, 0, progress):
            rows = np.arange(max(0, first - at), chunk[0].size, dtype=np.int32)
            parts.append(self.native.score(*chunk, rows, ids[at + 1 + rows], regime))
        return np.concatenate(parts)

    def _chunks(
        self,
        ids: NDArray[np.int32],
        positions: ArrayLike | None,
        seqs: Sequences,
        progress: Progress | None,
    ) -> Iterator[tuple[int, tuple[NDArray[np.int32], NDArray[np.int32], Sequences]]]:
        if ids.size == 0:
            raise ShapeError("tokens: expected at least one, found none")
        if positions is None:
            if not isinstance(seqs, int):
                raise ShapeError("positions: they must be given when rows are of several sequences")
            start = self.seq_pos_max(seqs) + 1
            at = np.arange(start, start + ids.size, dtype=np.int32)
        else:
            at = np.asarray(positions, np.int32)
            if at.shape != ids.shape:
                raise ShapeError(f"positions: expected {ids.size}, found {at.size}")
        for begin in range(0, ids.size, self.n_batch):
            end = min(begin + self.n_batch, ids.size)
            part = seqs if isinstance(seqs, int) else seqs[begin:end]
            yield begin, (ids[begin:end], at[begin:end], part)
            if progress is not None:
                progress(end, ids.size)

    def interrupt(self) -> None:
        """Stops the call in progress with CancelledError; safe from other threads and handlers."""
        self.native.interrupt()

    def clear(self) -> None:
        """Forgets all sequences."""
        self.native.clear()

    def seq_cp(self, src: int, dst: int, p0: int = 0, p1: int = -1) -> None:
        """Shares the cells of src at positions [p0, p1) with dst; p1 < 0 means to the end."""
        self.native.seq_cp(src, dst, p0, p1)

    def seq_rm(self, seq: int, p0: int = 0, p1: int = -1) -> None:
        """Takes positions [p0, p1) out of a sequence; cells that no sequence holds become free."""
        self.native.seq_rm(seq, p0, p1)

    def seq_keep(self, seq: int) -> None:
        """Removes every sequence but this one."""
        self.native.seq_keep(seq)

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Shifts positions [p0, p1) by delta and turns their keys along.

        Keys are rounded again: results differ slightly from those of a recomputed context.
        """
        self.native.seq_add(seq, p0, p1, delta)

    def seq_pos_min(self, seq: int) -> int:
        """The oldest position of a sequence, -1 when it is empty."""
        return self.native.seq_pos_min(seq)

    def seq_pos_max(self, seq: int) -> int:
        """The newest position of a sequence, -1 when it is empty."""
        return self.native.seq_pos_max(seq)

    def seq_reusable(self, seq: int, n: int | None = None) -> int:
        """The longest prefix, of at most n positions, to which the sequence may be cut and go on.

        Less than it holds where a window has already dropped what the next position would see.
        """
        return self.native.seq_reusable(seq, (1 << 31) - 1 if n is None else n)

    def close(self) -> None:
        """Frees the cache; idempotent."""
        self._native = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None
    ) -> None:
        self.close()


def _ids(tokens: Tokens) -> NDArray[np.int32]:
    ids = np.ascontiguousarray(tokens, dtype=np.int32)
    if ids.ndim != 1:
        raise ShapeError(f"tokens: expected one dimension, found {ids.ndim}")
    return ids


def _checked_spec(checkpoint: formats.Checkpoint) -> ModelSpec:
    """The spec, every tensor of the file being used or known to be unused."""
    spec = build_spec(checkpoint)
    unused = {t.name for t in checkpoint.tensors} - spec.tensors() - spec.ignored
    if unused:
        names = ", ".join(sorted(unused)[:3]) + (", ..." if len(unused) > 3 else "")
        raise UnsupportedError(
            f"{checkpoint.path}: {len(unused)} tensors have no place in a {spec.architecture} "
            f"model as known here: {names}; the model is of a variant that would run wrongly"
        )
    return spec


def _context_args(
    spec: ModelSpec, n_ctx: int | None, n_seq_max: int, n_batch: int, cache_type: CacheType
) -> dict[str, int | str]:
    if n_ctx is None or n_ctx == 0:
        n_ctx = min(DEFAULT_CTX, spec.n_ctx_train)
    if not 1 <= n_ctx <= spec.n_ctx_train * n_seq_max:
        raise ShapeError(
            f"n_ctx: expected 1 to {spec.n_ctx_train}, the context that {spec.name} was trained for"
            f"{f', times {n_seq_max} sequences' if n_seq_max > 1 else ''}; found {n_ctx}"
        )
    return {"n_ctx": n_ctx, "n_seq_max": n_seq_max, "n_batch": n_batch, "cache_type": cache_type}


def _plan(
    checkpoint: formats.Checkpoint,
    stage: _core.Stage,
    args: dict[str, int | str],
) -> MemoryPlan:
    kv, scratch = _core.Context.memory(stage, **args)  # type: ignore[arg-type]
    return MemoryPlan(
        weights=stage.weight_bytes,
        kv=kv,
        scratch=scratch,
        tokenizer=_tokenizer_bytes(checkpoint),
        available=psutil.virtual_memory().available,
    )


def _tokenizer_bytes(checkpoint: formats.Checkpoint) -> int:
    """What metadata and tokenizer take: measured on vocabularies of 49152 to 262144 tokens."""
    texts = checkpoint.metadata.get("tokenizer.ggml.tokens", [])
    merges = checkpoint.metadata.get("tokenizer.ggml.merges", [])
    return 290 * len(texts) + 310 * len(merges)
