"""Contexts: one user's KV cache over a model, and what may be done with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias, TypedDict, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pyflow import _core
from pyflow.adapters import Adapters
from pyflow.arguments import one_of, whole, whole_numbers
from pyflow.closing import Closing
from pyflow.engine.members.pools import context as of_members
from pyflow.engine.model_files import ModelFiles
from pyflow.engine.sources import SourceEncoder, states_of
from pyflow.errors import CancelledError, PyflowError, ShapeError
from pyflow.specs.model_spec import ModelSpec

Tokens: TypeAlias = Sequence[int] | NDArray[np.int32]
Sequences: TypeAlias = int | Sequence[int] | Sequence[Sequence[int]] | NDArray[np.int32]
Progress: TypeAlias = Callable[[int, int], None]
Guesses: TypeAlias = list[tuple[int, float]]
"""Tokens and their probabilities."""
CacheType: TypeAlias = Literal["f16", "q8_0"]
Regime: TypeAlias = Literal["prefill", "decode"]
Policy: TypeAlias = str
"""A key of POLICIES."""

REGIMES: tuple[Regime, ...] = get_args(Regime)
POLICIES: dict[Policy, str] = _core.POLICIES
"""What each policy of verification keeps of plain decoding: `exact`, tokens; `distribution`, their
distribution; `lossy`, neither."""
DEFAULT_CTX = 4096
DEFAULT_BATCH = 512
DEFAULT_SOURCE = 512


class ContextSizes(TypedDict, total=False):
    """The arguments of a context, as a caller gives them."""

    n_ctx: int | None
    n_seq_max: int
    n_batch: int
    cache_type: CacheType
    n_source: int | None


class ContextArgs(TypedDict):
    """The arguments of a native context, checked."""

    n_ctx: int
    n_seq_max: int
    n_batch: int
    cache_type: CacheType
    n_source: int


class Context(Closing):
    """One user's KV cache over a model: runs tokens, keeps sequences. One thread at a time.

    Positions count from 0 in each sequence. Where `positions` is None, tokens follow the newest
    position of their sequence.
    """

    def __init__(
        self,
        model: ModelFiles,
        stages: Sequence[_core.Stage],
        args: ContextArgs,
        layers: Sequence[int] = (),
        sources: SourceEncoder | None = None,
        adapters: Adapters | None = None,
    ) -> None:
        """model: whose weights the stages have, one or those of all members. layers: those that
        run; an empty list runs all. sources: reads those of a model that has some."""
        self.model, self._sources = model, sources
        self.n_ctx, self.n_seq_max = args["n_ctx"], args["n_seq_max"]
        self.n_batch = args["n_batch"]
        self.cache_type = args["cache_type"]
        self.n_source = args["n_source"]
        run = whole_numbers("layers", layers).tolist()
        self._native: _core.Context | None = of_members(stages, run, **args)
        self.stages = stages  # none after it has been closed
        self.prefill = stages[0].prefill
        """The arithmetic of prompts: a name, which is decode where they have none of their own."""
        self.shifts = stages[0].shifts
        """Whether cells may move: not where the model has learned embeddings of positions."""
        self._interrupted = False
        self.adapters = adapters
        if adapters is not None:
            adapters.begin(self.native, self.n_seq_max)

    @property
    def has_prefill(self) -> bool:
        """Whether cells depend on the regime in which they are computed."""
        return self.prefill != "decode"

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
        ids = whole_numbers("tokens", tokens)
        firsts = {"last": ids.size - 1, "all": 0, "none": ids.size}
        one_of("logits", logits, firsts)
        one_of("regime", regime, REGIMES)
        wanted = firsts[logits]
        parts = []
        for at, chunk in self._chunks(ids, positions, seqs, progress):
            rows = np.arange(max(0, wanted - at), chunk[0].size, dtype=np.int32)
            parts.append(self.native.forward(*chunk, rows, regime))
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def step(
        self,
        entries: Sequence[_core.Entry],
        *,
        first_layer: int = 0,
        features: NDArray[np.float32] | None = None,
    ) -> list[_core.EntryResult]:
        """One pass over the weights for all entries, of a sequence each.

        `_core.Entry` says what one may ask for. Their rows are n_batch at most.

        Given and accepted tokens become cells; samplers accept all that was drawn. The result of an
        entry does not depend on the others, to the last bit, and one that fails leaves no trace
        while the others go on. With first_layer, the rows of the only entry, its token and nodes,
        are pending after `exit_layer`, and go on from `features` (n, n_embd).

        Raises ResourceError when the cells run out, CancelledError after `interrupt`, ShapeError
        for sequences out of range or given twice: then nothing has changed.
        """
        rows = np.empty((0,), np.float32) if features is None else features
        return _core.step(self.native, entries, first_layer, rows)

    def declare(self, seq: int, n_positions: int) -> None:
        """Says how many positions a sequence may take; before, it is n_ctx. Models with frequencies
        of their own for long texts (LongRoPE) choose by this number. So a text has the same bits in
        a context that others share. ShapeError: the sequence has cells.
        """
        self.native.declare(whole("seq", seq), whole("n_positions", n_positions, 1))

    def turns_alike(self, n_positions: int, other: int) -> bool:
        """Whether sequences of these two declared lengths turn their positions alike."""
        return all(
            rope.is_long(n_positions) == rope.is_long(other) for rope in self.model.spec.ropes
        )

    def guess(
        self,
        tokens: Tokens,
        parents: ArrayLike,
        seq: int,
        wanted: ArrayLike,
        paths: Sequence[Sequence[int]],
        sampler: _core.Sampler,
        n: int = 1,
        *,
        distribution: bool = False,
    ) -> tuple[list[Guesses], list[Guesses]]:
        """Grows the pending tree of a sequence, or begins one: see `commit`.

        parents: for each token the number of the row it follows, counted since the tree began, or
        -1 for a root, of which each sequence has one. For each wanted row, of those given now, the
        n tokens that the sampler would draw after it, likeliest first, and their probabilities;
        paths holds the tokens between what the sampler has accepted and that place.

        distribution: draw them at random instead, by noise independent of the sampler's. The second
        result is, per wanted row, the distribution that they were drawn from without replacement
        (DraftTree.distributions); empty without `distribution`, and at temperature 0.
        """
        rows = np.asarray(wanted, np.int32).reshape(-1).tolist()
        if len(rows) != len(paths):
            raise ShapeError(
                f"paths: expected one per wanted row, found {len(paths)} for {len(rows)} rows"
            )
        asked = list(zip(rows, paths, strict=True))
        return _core.guess(
            self.native, tokens, parents, whole("seq", seq), asked, sampler, n, distribution
        )

    def exit_layer(
        self, tokens: Tokens, parents: ArrayLike, seq: int, layer: int
    ) -> NDArray[np.float32]:
        """Grows the pending tree as `guess` does, but runs the first layers alone.

        Returns what layer number `layer` would get, (n, n_embd). `verify` goes on from there.
        """
        return _core.exit_layer(self.native, tokens, parents, whole("seq", seq), layer)

    def commit(self, accepted: Sequence[tuple[int, int]]) -> None:
        """Ends the pending trees: of (row, sequence), each row becomes a cell of the sequence.

        The rows of a sequence come in the order of their positions. All others leave no trace.
        """
        _core.commit(self.native, accepted)

    def abort(self) -> None:
        """Ends the pending trees, if there are any, without a trace."""
        _core.abort(self.native)

    def read_sources(self, sources: Mapping[int, Tokens]) -> None:
        """Reads a source for each of these sequences, which have neither cells nor a source.

        All are encoded together; a source has the bits that it has alone. ResourceError: the cells
        of sources run out, or memory does; ShapeError: a source is empty or too long.
        """
        texts = [whole_numbers("source", tokens) for tokens in sources.values()]
        states = states_of(self._sources, self.model.spec, texts)
        try:
            for seq, rows in zip(sources, states, strict=True):
                self.native.read_source(whole("seq", seq), rows)
        except BaseException:
            for seq in sources:
                self.native.drop_source(seq)
            raise

    def share_source(self, src: int, dst: int) -> None:
        """dst, which has no source, sees that of src."""
        self.native.share_source(whole("src", src), whole("dst", dst))

    def drop_source(self, seq: int) -> None:
        """The sequence has no source any more; idempotent."""
        self.native.drop_source(whole("seq", seq))

    @property
    def n_free_source(self) -> int:
        """Cells of sources that are free."""
        return self.native.n_free_source

    @property
    def n_free(self) -> int:
        """Cells that are free in every layer."""
        return self.native.n_free

    def score(
        self,
        tokens: Tokens,
        first: int = 0,
        *,
        regime: Regime = "prefill",
        progress: Progress | None = None,
    ) -> NDArray[np.float64]:
        """log p(tokens[i + 1] | tokens[: i + 1]) for i = first .. n - 2, in a cleared cache."""
        ids = whole_numbers("tokens", tokens)
        one_of("regime", regime, REGIMES)
        if not 0 <= whole("first", first) < ids.size - 1:
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
            at = whole_numbers("positions", positions)
            if at.shape != ids.shape:
                raise ShapeError(f"positions: expected {ids.size}, found {at.size}")
        self._interrupted = False
        for begin in range(0, ids.size, self.n_batch):
            # Between chunks no run is in progress that the extension could stop.
            if self._interrupted:
                raise CancelledError("stopped")
            end = min(begin + self.n_batch, ids.size)
            part = seqs if isinstance(seqs, int) else seqs[begin:end]
            yield begin, (ids[begin:end], at[begin:end], part)
            if progress is not None:
                progress(end, ids.size)

    def interrupt(self) -> None:
        """Stops the call in progress, if any, with CancelledError.

        Safe at any time, from other threads and from signal handlers.
        """
        self._interrupted = True
        native = self._native  # looked at once: another thread may be closing
        if native is not None:
            native.interrupt()

    def observe(self, moments: _core.InputMoments | None) -> None:
        """From now on steps add the inputs of their matrices to these; None: no more.

        Where these want second moments, it takes an empty context (ShapeError), which is the only
        one to observe them (ShapeError). What attention mixes is then known by cell, so cells must
        stay where they are written: no copies that are written on, no trees.
        """
        self.native.observe(moments)

    def clear(self) -> None:
        """Forgets all sequences."""
        self.native.clear()

    def seq_cp(self, src: int, dst: int, p0: int = 0, p1: int = -1) -> None:
        """Shares the cells of src at positions [p0, p1) with dst; p1 < 0 means to the end."""
        self.native.seq_cp(whole("src", src), whole("dst", dst), whole("p0", p0), whole("p1", p1))

    def seq_rm(self, seq: int, p0: int = 0, p1: int = -1) -> None:
        """Takes positions [p0, p1) out of a sequence; cells that no sequence holds become free."""
        self.native.seq_rm(whole("seq", seq), whole("p0", p0), whole("p1", p1))

    def seq_keep(self, seq: int) -> None:
        """Removes every sequence but this one."""
        self.native.seq_keep(whole("seq", seq))

    def seq_add(self, seq: int, p0: int, p1: int, delta: int) -> None:
        """Shifts positions [p0, p1) by delta and turns their keys along.

        Keys are rounded again: results differ slightly from those of a recomputed context.
        Raises UnsupportedError unless the model `shifts`.
        """
        self.native.seq_add(
            whole("seq", seq), whole("p0", p0), whole("p1", p1), whole("delta", delta)
        )

    def seq_pos_max(self, seq: int) -> int:
        """The newest position of a sequence, -1 when it is empty."""
        return self.native.seq_pos_max(whole("seq", seq))

    def seq_reusable(self, seq: int, n: int | None = None) -> int:
        """The longest prefix, of at most n positions, to which the sequence may be cut and go on.

        Less than it holds where a window has already dropped what the next position would see.
        """
        return self.native.seq_reusable(
            whole("seq", seq), (1 << 31) - 1 if n is None else whole("n", n)
        )

    def close(self) -> None:
        """Frees the cache; idempotent."""
        self._native, self.stages = None, ()


def context_args(
    spec: ModelSpec,
    n_ctx: int | None = None,
    n_seq_max: int = 1,
    n_batch: int = DEFAULT_BATCH,
    cache_type: CacheType = "f16",
    n_source: int | None = None,
) -> ContextArgs:
    """The arguments of a native context, defaults filled in; ShapeError for a size out of range.

    n_source: cells of all sources together; None is 512 for each sequence of a model that has them.
    """
    n_seq_max = whole("n_seq_max", n_seq_max, 1, _core.MAX_SEQUENCES)
    n_ctx = 0 if n_ctx is None else whole("n_ctx", n_ctx, 0)
    if n_ctx == 0:
        n_ctx = min(DEFAULT_CTX, spec.n_ctx_train)
    if not 1 <= n_ctx <= spec.n_ctx_train * n_seq_max:
        raise ShapeError(
            f"n_ctx: expected 1 to {spec.n_ctx_train}, the context that {spec.name} was trained for"
            f"{f', times {n_seq_max} sequences' if n_seq_max > 1 else ''}; found {n_ctx}"
        )
    n_batch = whole("n_batch", n_batch, 1, _core.MAX_BATCH)
    one_of("cache_type", cache_type, get_args(CacheType))
    if n_source is None:
        n_source = DEFAULT_SOURCE * n_seq_max if spec.source else 0
    return {
        "n_ctx": n_ctx,
        "n_seq_max": n_seq_max,
        "n_batch": n_batch,
        "cache_type": cache_type,
        "n_source": whole("n_source", n_source, 0, 1 << 30),
    }
