"""A made-up language for pipelines that are only simulated: every token depends on all before it.

Each stage keeps, as the cell of a position, a number that depends on the cell before and on what
comes in; what the last one makes of it is the next token. Cells that are missing, of another path
or of another stage change every token after them, as with real keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from pyflow.cluster.run.drafts import IsWanted, always_wanted
from pyflow.cluster.wire.messages import (
    Accept,
    Drafted,
    DraftRequest,
    Frame,
    Questions,
    Remove,
    Result,
    Share,
)
from pyflow.errors import PyflowError, ResourceError, ShapeError
from pyflow.sampling import SamplingParams

_MASK = (1 << 64) - 1
N_VOCAB = 1 << 20


def mix(a: int, b: int) -> int:
    """A number that depends on two; constants of SplitMix64."""
    x = (a * 0x9E3779B97F4A7C15 + b + 0x632BE59BD9B4E019) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


@dataclass(slots=True)
class Language:
    """The next token after any path, for a pipeline of so many stages."""

    n_stages: int
    seed: int = 0

    def step(self, cells: Sequence[int], token: int) -> list[int]:
        """A position's cells of all stages, from those of the position before."""
        out, value = [], token
        for stage, cell in enumerate(cells):
            value = mix(mix(cell, value), stage)
            out.append(value)
        return out

    def first(self) -> list[int]:
        """What stands before the first position."""
        return [self.seed] * self.n_stages

    def token(self, cell: int) -> int:
        """What follows, by the last stage's cell."""
        return cell % N_VOCAB

    def write(self, prompt: Sequence[int], n: int) -> list[int]:
        """The n tokens after a prompt, one after the other in one place."""
        cells, out = self.first(), list(prompt)
        for i in range(len(prompt) + n):
            if i == len(out):
                out.append(self.token(cells[-1]))
            cells = self.step(cells, out[i])
        return out[len(prompt) :]


@dataclass(frozen=True, slots=True, eq=False)
class Cell:
    """What a position has left behind; several sequences may hold the same one."""

    value: int


@dataclass(slots=True)
class LanguageStage:
    """One stage of it: what `ModelStage` is to a model.

    window: a position needs so many cells, its own included, and sequences give up those before.
    """

    language: Language
    number: int
    n_cells: int
    window: int | None = None
    _cells: dict[int, list[Cell | None]] = field(default_factory=dict)
    _n_lost: int = 0
    n_accepted: int = 0

    @property
    def is_last(self) -> bool:
        return self.number == self.language.n_stages - 1

    @property
    def n_used(self) -> int:
        """Cells in use, those that several sequences share counted once."""
        return len({c for cells in self._cells.values() for c in cells if c is not None})

    def held(self, seq: int) -> list[Cell | None]:
        """A sequence's cells by position."""
        return self._cells.setdefault(seq, [])

    def handle(self, frame: Frame, skip: bool = False) -> Frame | Result | None:
        """What `frame` becomes here; with skip, its run is left out."""
        for op in frame.ops:
            if isinstance(op, Accept):
                self.n_accepted += len(op.tokens)
            elif isinstance(op, Share):
                self._share(op)
            elif isinstance(op, Remove):
                self._remove(op)
        run = frame.run
        if run is None:
            return None if self.is_last else frame
        if skip or frame.skipped:
            if self.is_last:
                return Result(frame.epoch, run.number, (), True)
            return Frame(frame.epoch, frame.number, frame.ops, run, None, True)
        questions = run.questions or Questions(0, (), (), ())
        inputs = run.tokens + questions.tokens
        if frame.hidden is not None:
            inputs = frame.hidden[:, 0].tolist()
        n = len(run.tokens)
        cells = self.held(run.seq)
        if len(cells) > run.position:
            raise ShapeError(f"sequence {run.seq} already holds position {run.position}")
        out = []
        for i, value in enumerate(inputs[:n]):
            position = run.position + i
            cells += [None] * (position - len(cells))
            if None in (cells if self.window is None else cells[len(cells) + 1 - self.window :]):
                self._n_lost += 1
                before = mix(self._n_lost, _MASK)
            else:
                last = cells[-1] if cells else None
                before = last.value if last else self.language.seed
            out.append(mix(mix(before, value), self.number))
            cells.append(Cell(out[-1]))
        if self.window is not None:
            n_gone = max(0, len(cells) + 1 - self.window)
            cells[:n_gone] = [None] * n_gone
        # Rows of questions have cells for the time of the run.
        n_used = self.n_used + len(questions.tokens)
        if n_used > self.n_cells:
            raise ResourceError(f"{n_used} cells in use, there are {self.n_cells}")
        for value, parent in zip(inputs[n:], questions.parents, strict=True):
            out.append(mix(mix(out[n + parent if parent >= 0 else 0], value), self.number))
        if self.is_last:
            if self.n_accepted != run.position - len(run.path):
                raise PyflowError(
                    f"run {run.number} at {run.position}: a path of {len(run.path)} tokens "
                    f"after a text of {self.n_accepted}"
                )
            draws = [self.language.token(c) for c in out[n - run.n_draws : n]]
            answers = [self.language.token(out[n + a if a >= 0 else 0]) for a in questions.asked]
            return Result(frame.epoch, run.number, tuple(draws), answers=tuple(answers))
        hidden = np.array(out, dtype=np.uint64)[:, None]
        return Frame(frame.epoch, frame.number, frame.ops, run, hidden)

    def _share(self, op: Share) -> None:
        source, cells = self.held(op.src), self.held(op.dst)
        if len(cells) > op.p0 and any(c is not None for c in cells[op.p0 : op.p1]):
            raise ShapeError(f"sequence {op.dst} already holds a position in {op.p0}..{op.p1}")
        cells += [None] * (op.p0 - len(cells))
        cells[op.p0 : op.p1] = source[op.p0 : op.p1]

    def _remove(self, op: Remove) -> None:
        cells = self.held(op.seq)
        end = len(cells) if op.p1 < 0 else op.p1
        if end < len(cells):
            raise PyflowError("only ends of sequences are removed here")
        del cells[op.p0 :]


@dataclass(slots=True)
class LanguageDrafter:
    """Guesses the next token rightly with probability alpha, on any path, the same each time.

    n_asked: rows that it has a question about, and when that has been answered, about others.
    """

    language: Language
    alpha: float
    seed: int = 1
    n_asked: int = 0
    text: list[int] = field(default_factory=list)
    _number: int = 1
    _cells: list[list[int]] = field(default_factory=list)  # after each token of the text

    def begin(self, sampling: SamplingParams, stream: int) -> None:
        """The language has no noise."""

    def answer(self, request: DraftRequest, __: IsWanted = always_wanted, /) -> Drafted:
        """The guesses for a request; their probabilities are alpha, whether right or wrong."""
        self._cut(request.keep)
        for token in request.tokens:
            self._add(token)
        guesses: list[int] = []
        if self.alpha >= request.least:
            for _ in range(request.n):
                last = self._cells[-1][-1]
                lucky = mix(last, self.seed) / (_MASK + 1) < self.alpha
                guesses.append((self.language.token(last) + (0 if lucky else 1)) % N_VOCAB)
                self._add(guesses[-1])
        self._cut(request.keep + len(request.tokens))
        chances = (self.alpha,) * len(guesses)
        n, asks = self.n_asked, None
        if request.answers is not None:
            self._number = request.answers.number + 1
        if n:
            asks = Questions(self._number, tuple(range(n)), (-1,) * n, tuple(range(n)))
        return Drafted(request.epoch, request.number, tuple(guesses), chances, asks)

    def close(self) -> None:
        """There is nothing to free."""

    def _add(self, token: int) -> None:
        before = self._cells[-1] if self._cells else self.language.first()
        self._cells.append(self.language.step(before, token))
        self.text.append(token)

    def _cut(self, n: int) -> None:
        if n > len(self.text):
            raise PyflowError(f"drafter: asked to keep {n} tokens of {len(self.text)}")
        del self.text[n:], self._cells[n:]
