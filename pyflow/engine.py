"""Models: the Python face of the C++ engine.

A `Model` holds weights and tokenizer, never changes, and may be shared between threads.
"""

from __future__ import annotations

import functools
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack, overload

import numpy as np
from numpy.typing import NDArray

from pyflow import formats
from pyflow.specs import build_spec, describe
from pyflow.specs.model_spec import ModelSpec

from . import _core, catalogue, chat
from .arguments import whole, whole_numbers
from .chat import ChatTemplate
from .closing import Closing
from .context import (
    DEFAULT_BATCH,
    CacheType,
    Context,
    Regime,
    Scorer,
    Tokens,
    context_args,
)
from .errors import PlacementWarning, PyflowError, ResourceError
from .generate import Completion, Options, Prompt, Stream, generate, stream
from .generate.conversation import LocalConversation
from .generate.defaults import read_defaults
from .memory import available_nbytes
from .speculate import Speculator
from .tokenizer import NoTokenizerError, Tokenizer, from_checkpoint, memory_nbytes
from .topology import (
    NumaMode,
    Placement,
    cgroup_cpus,
    choose_threads,
    default_numa,
    place,
    this_machine,
)


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


def load(
    path: str | Path,
    *,
    n_threads: int | None = None,
    numa: NumaMode | Placement | None = None,
    quantize: str | None = None,
    layers: Sequence[int] = (),
) -> Model:
    """A model from a pulled name or the path of a checkpoint, ready to run.

    n_threads: None chooses by `topology.choose_threads`. numa: where weights and threads go on a
    machine with several memory nodes, as `--numa`, or a plan of one's own; None chooses by
    `topology.default_numa`. What the system refuses of it is a PlacementWarning. quantize: a
    format such as "q8_0", which weights in F32, F16 or BF16 become while they are loaded; weights
    that are quantized already stay as they are. layers: those that the model has, no others are
    loaded, as for drafts by some of its layers; none named, all of them.
    Raises FormatError or UnsupportedError for a file that is not such a model or has nothing to
    quantize, ResourceError when its weights do not fit into memory, ShapeError for layers that it
    has not.
    """
    return Model(path, n_threads=n_threads, numa=numa, quantize=quantize, layers=layers)


def plan(
    path: str | Path,
    *,
    n_ctx: int | None = None,
    n_seq_max: int = 1,
    n_batch: int = DEFAULT_BATCH,
    cache_type: CacheType = "f16",
    numa: NumaMode | Placement | None = None,
    quantize: str | None = None,
) -> MemoryPlan:
    """What `load` and one context would take, from the file's header alone: nothing is loaded.

    Raises like `load`.
    """
    checkpoint = catalogue.open_checkpoint(path, quantize=quantize)
    spec = build_spec(checkpoint)
    pool, _ = _placed_pool(None, numa)
    stage = _core.Stage(
        checkpoint.native, spec.stage(), pool, load=False, pack_as=checkpoint.pack_as
    )
    args = context_args(spec, n_ctx, n_seq_max, n_batch, cache_type)
    return _plan(checkpoint, spec, stage, args)


class Described:
    """What a model's file says of it, weights aside."""

    def __init__(
        self,
        path: str | Path,
        beside: Callable[[], None] = lambda: None,
        *,
        quantize: str | None = None,
        layers: Sequence[int] = (),
    ) -> None:
        """path: a pulled name, or the path of a checkpoint. beside: what may be done while the
        vocabulary is read. quantize, layers: as for `load`, whose errors it raises."""
        start = time.monotonic()
        self.path = catalogue.resolve(path)
        self.checkpoint = catalogue.open_checkpoint(self.path, quantize=quantize)
        self.metadata = self.checkpoint.metadata
        self._description = describe(self.checkpoint)
        self.spec = self._description.spec
        if layers:
            self.spec = self.spec.shallow(layers)
        self.defaults = read_defaults(
            self.checkpoint,
            n_ctx=self.spec.n_ctx_train,
            n_vocab=self.spec.n_vocab,
            spec=self._description.generation,
        )
        with ThreadPoolExecutor(1) as reader:
            tokenizer = reader.submit(
                from_checkpoint,
                self.checkpoint,
                n_rows=self.spec.n_vocab,
                stop_ids=self.defaults.stop_ids | frozenset(self._description.stop_ids),
            )
            beside()
            self._tokenizer: Tokenizer | None = None
            self._no_tokenizer = ""
            try:
                self._tokenizer = tokenizer.result()
            except NoTokenizerError as error:
                self._no_tokenizer = str(error)
        self.load_ms = 1e3 * (time.monotonic() - start)

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def tokenizer(self) -> Tokenizer:
        """NoTokenizerError where the model's files have none: it takes token ids alone."""
        if self._tokenizer is None:
            raise NoTokenizerError(self._no_tokenizer)
        return self._tokenizer

    @functools.cached_property
    def chat_template(self) -> ChatTemplate | None:
        """The model's own template; None where it has none."""
        return chat.from_checkpoint(
            self.checkpoint, self.tokenizer, template=self._description.template
        )


class Model(Described, Closing):
    """Weights, tokenizer and chat template of one model. Immutable; safe to share between threads.

    Also a context manager: leaving it frees the weights once no context uses them.
    """

    def __init__(
        self,
        path: str | Path,
        *,
        n_threads: int | None = None,
        numa: NumaMode | Placement | None = None,
        quantize: str | None = None,
        layers: Sequence[int] = (),
    ) -> None:
        self._pool, self.placement = _placed_pool(n_threads, numa)
        self.n_threads = self._pool.n_threads
        self._stage: _core.Stage | None = None
        super().__init__(path, self._pack, quantize=quantize, layers=layers)
        if refusals := self._pool.placement.refusals:
            warnings.warn(
                f"numa {self.placement.mode}: the system refuses {'; '.join(refusals)}; memory "
                "lies where threads touch it first",
                PlacementWarning,
                stacklevel=2,
            )

    def _pack(self) -> None:
        """Loads the weights, by the threads of the pool."""
        copies = self.placement.n_copies
        native, spec, pack_as = self.checkpoint.native, self.spec.stage(), self.checkpoint.pack_as
        need = _core.Stage(native, spec, self._pool, load=False, pack_as=pack_as).weight_bytes
        if need > (free := available_nbytes()):
            what = f"{copies} copies of the weights" if copies > 1 else "the weights"
            hint = "choose a smaller model"
            if catalogue.can_quantize(self.checkpoint):
                hint = f"load it with quantize q8_0 or fewer bits, or {hint}"
            if copies > 1:
                hint += ", or numa local, which needs one"
            raise ResourceError(
                f"{self.path}: {what} take {need:,} bytes, {free:,} are available; "
                f"close other programs, or {hint}"
            )
        self._stage = _core.Stage(native, spec, self._pool, pack_as=pack_as)

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

    def context(
        self,
        n_ctx: int | None = None,
        *,
        n_seq_max: int = 1,
        n_batch: int = DEFAULT_BATCH,
        cache_type: CacheType = "f16",
        layers: Sequence[int] = (),
    ) -> Context:
        """A fresh context of n_ctx cells shared by up to n_seq_max sequences.

        n_ctx: None is 4096 or the model's own limit, whichever is less. n_batch: rows of one step.
        layers: those that run, the others are left out; none named, all run.
        Raises ShapeError for sizes out of range, ResourceError when the memory is refused.
        """
        args = context_args(self.spec, n_ctx, n_seq_max, n_batch, cache_type)
        memory = _plan(self.checkpoint, self.spec, self.stage, args)
        if memory.kv + memory.scratch > memory.available:
            raise ResourceError(
                f"context of {args['n_ctx']}: needs {memory.kv + memory.scratch:,} bytes, "
                f"{memory.available:,} are available; choose a smaller context or cache type q8_0"
            )
        return Context(self, args, layers)

    def conversation(
        self,
        n_ctx: int | None = None,
        *,
        cache_type: CacheType = "f16",
        speculator: Speculator | None = None,
    ) -> LocalConversation:
        """What `ChatSession` answers from: a context of its own, sized as `context` says."""
        return LocalConversation(self.context(n_ctx, cache_type=cache_type), speculator)

    def memory(
        self,
        n_ctx: int | None = None,
        *,
        n_seq_max: int = 1,
        n_batch: int = DEFAULT_BATCH,
        cache_type: CacheType = "f16",
    ) -> MemoryPlan:
        """What the model and one such context take."""
        args = context_args(self.spec, n_ctx, n_seq_max, n_batch, cache_type)
        return _plan(self.checkpoint, self.spec, self.stage, args)

    def logits(self, tokens: Tokens) -> NDArray[np.float32]:
        """Logits after each token of a fresh sequence: (len(tokens), n_vocab)."""
        ids = whole_numbers("tokens", tokens)
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
        TypeError: an option that there is not.
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


def _placed_pool(
    n_threads: int | None, numa: NumaMode | Placement | None
) -> tuple[_core.ThreadPool, Placement]:
    """Threads where they belong; None for a number or a mode chooses."""
    machine = this_machine()
    if isinstance(numa, Placement) and numa.nodes:
        n_threads = n_threads or sum(node.n_threads for node in numa.nodes)
    elif n_threads is None:
        n_threads, _ = choose_threads(machine, cgroup_cpus())
    n_threads = whole("n_threads", n_threads, 1)
    if not isinstance(numa, Placement):
        numa = place(machine, n_threads, numa or default_numa(machine)[0])
    return _core.ThreadPool(n_threads, placement=numa.native()), numa


def _plan(
    checkpoint: formats.Checkpoint,
    spec: ModelSpec,
    stage: _core.Stage,
    args: dict[str, int | str],
) -> MemoryPlan:
    kv, scratch = _core.Context.memory(stage, **args)  # type: ignore[arg-type]
    return MemoryPlan(
        weights=stage.weight_bytes,
        kv=kv,
        scratch=scratch,
        tokenizer=memory_nbytes(checkpoint, spec.n_vocab),
        available=available_nbytes(),
    )
