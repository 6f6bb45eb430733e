"""A model in virtual time: cells and their owners are real, tokens are hashes of what is seen."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np

from pyflow import _core
from pyflow.batch.batch import Batch
from pyflow.batch.completion import Completion
from pyflow.batch.local_runner import LocalRunner
from pyflow.batch.request import Request, View
from pyflow.engine.context import Context
from pyflow.engine.defaults import Defaults
from pyflow.errors import ResourceError
from pyflow.sampling import SamplingParams
from pyflow.tokenizer import NoTokenizerError

N_VOCAB = 256
EOS = 255
GREEDY = SamplingParams(temperature=0, seed=1)


def next_token(seen: Sequence[int]) -> int:
    """What follows a text; now and then it is its end."""
    found = zlib.crc32(np.asarray(seen, np.int32).tobytes())
    return EOS if found % 97 == 0 else found % 255


class VirtualModel:
    """What a batch asks a model for."""

    load_ms = 0.0
    defaults = Defaults(stop_ids=frozenset([EOS]))
    spec = SimpleNamespace(n_vocab=N_VOCAB, n_embd=1)

    @property
    def tokenizer(self) -> Any:
        raise NoTokenizerError("no text here")


class VirtualContext(Context):
    """Steps take the seconds of a linear law; sequences share cells."""

    PER_STEP, PER_ROW, PER_CELL = 0.02, 0.003, 1e-7
    PER_PROMPT_ROW = 0.0003  # where prompts have an arithmetic of their own

    def __init__(
        self,
        n_ctx: int,
        n_seq_max: int,
        n_batch: int = 512,
        window: int = 0,
        prefill: str = "decode",
    ) -> None:
        self.model: Any = VirtualModel()
        self.n_ctx, self.n_seq_max, self.n_batch, self.window = n_ctx, n_seq_max, n_batch, window
        self.prefill = prefill
        self.layer_windows = [window]
        self.shifts, self.adapters = True, None
        self.now = 0.0
        self.steps: list[tuple[int, float]] = []  # rows, seconds
        self._cells: list[dict[int, tuple[int, int]]] = [{} for _ in range(n_seq_max)]
        self._next = 0
        self._closed = False

    @property
    def native(self) -> Any:
        return self

    def clock(self) -> float:
        return self.now

    @property
    def n_free(self) -> int:
        return self.n_ctx - len({cell for cells in self._cells for _, cell in cells.values()})

    def step(self, entries: Sequence[_core.Entry], **_: Any) -> list[Any]:
        n_rows = sum(len(entry.tokens) for entry in entries)
        assert 0 < n_rows <= self.n_batch
        assert len({entry.seq for entry in entries}) == len(entries)
        if n_rows > self.n_free:
            raise ResourceError("out of cells")
        results, n_seen = [], 0
        for entry in entries:
            cells, drawn = self._cells[entry.seq], []
            for token in entry.tokens:
                self._next += 1
                cells[len(cells)] = (token, self._next)
                n_seen += len(cells)
            if entry.sampler is not None:
                token = next_token([token for token, _ in cells.values()])
                drawn.append(SimpleNamespace(token=token, top=[], logprob=0.0))
            results.append(
                SimpleNamespace(drawn=drawn, nodes=[], failed=False, check=lambda: None, reports=[])
            )
        n_read = sum(len(e.tokens) for e in entries if e.regime == "prefill") * self.has_prefill
        seconds = self.PER_STEP * ((n_rows > n_read) + (n_read > 0)) + self.PER_CELL * n_seen
        seconds += self.PER_ROW * (n_rows - n_read) + self.PER_PROMPT_ROW * n_read
        self.now += seconds
        self.steps.append((n_rows, seconds))
        return results

    def turns_alike(self, n_positions: int, other: int) -> bool:  # noqa: ARG002
        return True

    def seq_rm(self, seq: int, p0: int = 0, p1: int = -1) -> None:
        assert p1 == -1
        self._cells[seq] = {p: cell for p, cell in self._cells[seq].items() if p < p0}

    def seq_cp(self, src: int, dst: int, p0: int = 0, p1: int = -1) -> None:
        assert p0 == 0
        assert not self._cells[dst]
        assert p1 <= len(self._cells[src])
        self._cells[dst] = {p: cell for p, cell in self._cells[src].items() if p < p1}

    def seq_pos_max(self, seq: int) -> int:
        return max(self._cells[seq], default=-1)

    def seq_reusable(self, seq: int, n: int | None = None) -> int:
        held = len(self._cells[seq])
        n = held if n is None else n
        # With a window, cells long past cannot be had back.
        return min(n, held) if not self.window or n > held - self.window else 0

    def close(self) -> None:
        self._closed = True


def alone(tokens: Sequence[int], n_predict: int, limit: int) -> list[int]:
    seen, out = [*tokens], []
    while len(out) < n_predict and len(seen) <= limit:
        token = next_token(seen)
        if token == EOS:
            break
        seen.append(token)
        out.append(token)
    return out


def request(tokens: Sequence[int], n_predict: int = 20, **how: Any) -> Request:
    how = {"limit": 4096, "reuse": True} | how
    return Request(view=View([*tokens]), sampling=GREEDY, n_predict=n_predict, **how)


class Served:
    """A batch, and all that has come out of it."""

    def __init__(self, context: VirtualContext, **how: Any) -> None:
        self.context = context
        self.runner = LocalRunner(context, clock=context.clock, **how)
        self.batch = Batch(self.runner, VirtualModel())  # type: ignore[arg-type]
        self.asked: dict[int, Request] = {}
        self.done: dict[int, Completion] = {}
        self.times: dict[int, list[float]] = {}  # of tokens
        self.n_put_back: dict[int, int] = {}

    def add(self, request: Request) -> int:
        number = self.batch.add(request)
        self.asked[number] = request
        self.times[number] = [self.context.now]
        return number

    def step(self) -> None:
        for event in self.batch.step():
            assert event.error is None
            if event.chunk is not None:
                self.times[event.number].append(self.context.now)
            if event.completion is not None:
                self.done[event.number] = event.completion

    def finish(self) -> None:
        while self.batch.is_busy:
            self.step()
        for number, asked in self.asked.items():
            found, whole = (
                self.done[number].tokens,
                alone(asked.view.tokens, asked.n_predict, asked.limit),
            )
            if self.done[number].stop_reason == "cancelled":
                whole = whole[: len(found)]
            assert found == whole, (number, self.done[number].stop_reason)
        self.check_nothing_is_left()

    def check_nothing_is_left(self) -> None:
        """But what is kept for later texts."""
        self.runner.prefixes.clear()
        assert self.runner.prefixes.n_sequences == self.context.n_seq_max
        self.runner.prefixes.free(self.context.n_ctx)
        assert self.context.n_free == self.context.n_ctx
