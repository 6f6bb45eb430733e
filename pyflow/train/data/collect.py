"""Let a model write answers, many at once, and keep them with their hidden states.

A step of a batch gives the next token of each answer and what the head got for it. An answer is a
function of its number alone, whatever is written beside it, so a collection goes on where it was
stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from pyflow import _core
from pyflow.errors import PyflowError, ResourceError
from pyflow.sampling import SamplingParams
from pyflow.train.data.answers import TEXT, Answer
from pyflow.train.data.prompts import prompts

if TYPE_CHECKING:
    from pyflow.engine.context import Context
    from pyflow.engine.loaded import LoadedModel

MOST_PROMPT, MOST_NEW = 448, 160
"""Tokens of a prompt, longer ones are left out; and of an answer."""
_TEXT_TOKENS = 384
_TEMPERATURES = (0.0, 0.7, 0.0, 1.0)
"""By number: half of the answers are greedy, since most users' are, or nearly."""
_BATCH = 704  # rows of a step: a token of each of 256 answers, and a prompt
_CELLS = 320
"""Of a sequence on average, prompt and answer together."""

Pace = Callable[[int], bool]
"""Asked after every step, with the tokens so far: whether to end before all are there."""


def _on(n_tokens: int) -> bool:  # noqa: ARG001
    return False


@dataclass(slots=True)
class _Writing:
    """An answer on its way."""

    number: int
    seq: int
    prompt: list[int]
    temperature: float
    sampler: _core.Sampler
    n_new: int
    drawn: list[int] = field(default_factory=list)
    hidden: list[NDArray[np.float32]] = field(default_factory=list)

    @property
    def n_cells(self) -> int:
        return len(self.prompt) + self.n_new


class Collector:
    """A model that writes answers. exit_layer: keep features after so many layers; 0: none."""

    def __init__(
        self,
        model: LoadedModel,
        passages: Sequence[str],
        *,
        seed: int,
        n_parallel: int,
        exit_layer: int = 0,
    ) -> None:
        self._model, self._passages, self._seed = model, passages, seed
        most = model.spec.n_ctx_train
        self._n_new = min(MOST_NEW, most // 2)
        self._most_prompt = min(MOST_PROMPT, most - self._n_new)
        self._n_parallel = min(n_parallel, _core.MAX_SEQUENCES, _BATCH - self._most_prompt)
        self._stops = model.defaults.stop_ids | model.tokenizer.stop_ids
        self._exit_layer = exit_layer
        self._shallow: Context | None = None

    def answers(
        self, n_tokens: int, there: dict[int, int], first: int = 0, pace: Pace = _on
    ) -> Iterator[Answer]:
        """Writes answers from number `first` on, until those without a gap have `n_tokens`.

        there: lengths of answers that are there already, by number. Where `pace` ends it, those on
        their way are cut short. PyflowError: no prompt is short enough.
        """
        n_cells = max(self._n_parallel * _CELLS, self._most_prompt + self._n_new)
        n_cells = min(n_cells, self._model.spec.n_ctx_train * self._n_parallel)
        try:
            context = self._model.context(n_cells, n_seq_max=self._n_parallel, n_batch=_BATCH)
        except ResourceError as error:
            raise ResourceError(
                f"{self._n_parallel} answers at once: {error}, or fewer --sequences"
            ) from None
        with context:
            yield from self._write(context, n_tokens, dict(there), first, pace)

    def _write(
        self, context: Context, n_tokens: int, lengths: dict[int, int], first: int, pace: Pace
    ) -> Iterator[Answer]:
        waiting = self._asked(lengths, first)
        following = next(waiting, None)
        if following is None:
            raise PyflowError(
                f"prompts: expected some of at most {self._most_prompt} tokens, found none"
            )
        writing: list[_Writing] = []
        free = [*range(self._n_parallel)]
        while True:
            begun: list[_Writing] = []
            n_rows = len(writing)
            n_cells = sum(each.n_cells for each in writing)
            while following is not None and free:
                if _written(lengths, writing, following.number) >= n_tokens:
                    break
                n_rows += len(following.prompt)
                n_cells += following.n_cells
                if n_rows > _BATCH or n_cells > context.n_ctx:
                    break
                following.seq = free.pop()
                context.declare(following.seq, following.n_cells)
                begun.append(following)
                following = next(waiting, None)
            if not begun and not writing:
                return
            writing = self._step(context, begun, writing)
            for each in [*writing]:
                if each.drawn[-1] in self._stops or len(each.drawn) >= each.n_new:
                    writing.remove(each)
                    context.seq_rm(each.seq)
                    free.append(each.seq)
                    lengths[each.number] = len(each.drawn)
                    yield self._answer(each)
            if pace(sum(lengths.values()) + sum(len(each.drawn) for each in writing)):
                yield from map(self._answer, writing)
                return

    def _step(
        self, context: Context, begun: list[_Writing], writing: list[_Writing]
    ) -> list[_Writing]:
        """Draws a token of each; prompts are read first."""
        entries = [
            _core.Entry(each.seq, each.prompt, each.sampler, hidden=[-1], regime="prefill")
            for each in begun
        ]
        entries += [
            _core.Entry(each.seq, each.drawn[-1:], each.sampler, hidden=[-1]) for each in writing
        ]
        both = [*begun, *writing]
        for each, result in zip(both, context.step(entries), strict=True):
            result.check()
            each.drawn.append(result.drawn[0].token)
            each.hidden.append(result.hidden)
        return both

    def _asked(self, lengths: dict[int, int], first: int) -> Iterator[_Writing]:
        """Answers that are not there, by number."""
        fitting = (ids for ids in map(self._ids, prompts(self._passages, self._seed)) if ids)
        for number, ids in islice(enumerate(fitting), first, None):
            if number in lengths:
                continue
            temperature = _TEMPERATURES[number % len(_TEMPERATURES)]
            sampling = SamplingParams(temperature=temperature, seed=self._seed)
            sampler = sampling.sampler(stream=number)
            yield _Writing(number, 0, ids, temperature, sampler, self._n_new)

    def _ids(self, prompt: str) -> list[int]:
        """The tokens of a prompt; none if it is too long."""
        template = self._model.chat_template
        if template is None:
            ids = self._model.tokenizer.encode(prompt)
        else:
            ids = template.encode([{"role": "user", "content": prompt}], tell=lambda _: None)
        return ids if len(ids) <= self._most_prompt else []

    def _answer(self, each: _Writing) -> Answer:
        return Answer(
            number=each.number,
            temperature=each.temperature,
            prompt=each.prompt,
            drawn=each.drawn,
            hidden=np.stack(each.hidden),
            features=self._features(each.prompt, each.drawn[:-1]),
        )

    def _features(self, prompt: list[int], drawn: list[int]) -> NDArray[np.float32] | None:
        if not self._exit_layer:
            return None
        if self._shallow is None:
            n = max(self._most_prompt + self._n_new, _TEXT_TOKENS)
            n = min(n, self._model.spec.n_ctx_train)
            layers = range(self._exit_layer)
            self._shallow = self._model.context(n, n_batch=n, layers=layers)
        self._shallow.clear()
        parts = []
        for ids, regime in ((prompt, "prefill"), (drawn, "decode")):
            if ids:
                self._shallow.forward(ids, logits="none", regime=regime)  # type: ignore[arg-type]
                parts.append(self._shallow.native.hidden())
        return np.concatenate(parts)

    def texts(
        self, texts: Iterable[str], n_tokens: int, first: int = 0, pace: Pace = _on
    ) -> Iterator[Answer]:
        """Pieces of given texts as if the model had drawn all tokens but the first."""
        n = min(_TEXT_TOKENS, self._model.spec.n_ctx_train)
        n_read = 0
        with self._model.context(n, n_batch=n) as context:
            for number, ids in enumerate(self._pieces(texts, n)):
                if n_read >= n_tokens:
                    return
                n_read += len(ids) - 1
                if number < first:
                    continue
                context.clear()
                rows = [*range(len(ids) - 1)]
                entry = _core.Entry(0, ids[:-1], hidden=rows, regime="prefill")
                (result,) = context.step([entry])
                result.check()
                yield Answer(
                    number=number,
                    temperature=TEXT,
                    prompt=ids[:1],
                    drawn=ids[1:],
                    hidden=result.hidden.reshape(len(rows), -1),
                    features=self._features(ids[:-1], []),
                )
                if pace(n_read):
                    return

    def _pieces(self, texts: Iterable[str], n: int) -> Iterator[list[int]]:
        for text in texts:
            ids: list[Any] = self._model.tokenizer.encode(text)
            for begin in range(0, len(ids) - 1, n):
                if len(piece := ids[begin : begin + n]) > 1:
                    yield piece


def _written(lengths: dict[int, int], writing: Iterable[_Writing], number: int) -> int:
    """Tokens of all answers before this one."""
    ended = sum(n for each, n in lengths.items() if each < number)
    return ended + sum(len(each.drawn) for each in writing if each.number < number)
